"""Steps recorded once and replayed: for one run, or for several at the same time.

A step is three recordings: a part of the batch (look records up, clip, add to the sum), the noise, and what follows
from it (update, keep). A batch that is larger than a part is done in several, exactly. Steps whose levels and phase
differ have recordings of their own.

Guarantees:
    Recorded steps release what steps taken one by one release, but for rounding, from the same key.
    Padding contributes exactly zero.
    What cannot be recorded is taken one by one, and the release says so.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from dpbnn._warn import warn
from dpbnn.clipping.gradient import shorten
from dpbnn.clipping.objective import wide
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.data.read_ahead import read_ahead
from dpbnn.data.records import ResidentRecords, generators_of_the_process
from dpbnn.device.flat import in_one_piece, joined
from dpbnn.device.streams import beside, join, side_by_side
from dpbnn.models.replica import switches_of
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import by_step
from dpbnn.training.steps.eager import EagerSteps
from dpbnn.training.steps.feeds import DEVIATIONS, Feed, Part, ResidentFeed, Sizes, StreamedFeed, largest_part
from dpbnn.training.steps.graphs import Graphs, NotRecordable, SharedNoise
from dpbnn.training.steps.work import Work
from dpbnn.types import ClippedSum, Draws, NoisySum, Weights

__all__ = ["RecordedSteps", "Recorder", "why_not_recorded"]

WARM_UP = 1
"""Steps that are not recorded: they load libraries and make state that an optimizer makes late; in the last of them,
waiting is an error."""


class Recorder(Protocol):
    """What makes recordings."""

    def without_waiting(self, work: Callable[[], None]) -> None:
        """Do the work; whatever would make the host wait for the device raises."""
        ...

    def record(self, work: Callable[[], object], host_state: Callable[[], Any]) -> Callable[[], None]:
        """A function that does the same work again."""
        ...


def why_not_recorded(work: Work, state: Any, step: int) -> str | None:
    """A reason against recording that is known beforehand; None if there is none, "" if nobody expects it."""
    if work.device.type != "cuda" or not work.execution.graphs:
        return ""
    if work.diagnostics.wanted:
        return "unsafe_diagnostics looks at every step"
    if work.method.phase(state, step) is None:
        return f"{type(work.method).__name__} has no phase: it, or its optimizer, counts on the host"
    return None


class RecordedSteps:
    """The steps of runs that share their device and their number of steps; their states are changed in place.

    The ledgers of the runs, if there are any, are told of every sum.
    """

    def __init__(
        self,
        runs: Sequence[Work],
        states: Sequence[Any],
        first_step: int,
        recorder: Recorder | None = None,
        ledgers: Sequence[Ledger] = (),
    ) -> None:
        self._runs, self._states, self._ledgers = list(runs), list(states), list(ledgers)
        self._noise = SharedNoise.of(runs[0].randomness, runs[0].device)
        self._masks = runs[0].randomness.masks(first_step)
        generators = self._noise.on_device, self._masks.on(runs[0].device)
        self._recorder: Recorder = recorder or Graphs(runs[0].device, generators)
        count = max(work.size_for_memory for work in runs)
        rate = max(work.plan.sampling_rate for work in runs)
        limits = [
            work.execution.micro_batch_size or largest_part(work.checked.numbers_written_out, count, rate)
            for work in runs
        ]
        deviations = DEVIATIONS if len(runs) == 1 else DEVIATIONS + 1
        self._sizes = Sizes.of(count, rate, deviations, min(filter(None, limits), default=None))
        rooms = [_Room(work, state, first_step, self._sizes.adds_up) for work, state in zip(runs, states, strict=True)]
        self._sums, self._noisy = [room.sums for room in rooms], [NoisySum(room.released) for room in rooms]
        self._feed = self._open_feed(first_step)
        self._levels_at = list(zip(*(_levels_by_step(work.plan) for work in runs), strict=True))
        self._recorded_from = first_step + WARM_UP
        self._recordings: dict[Any, Callable[[], None]] = {}
        self._one_by_one: list[EagerSteps] = []
        self._how, self._is_settled = "recorded and replayed (CUDA graphs)", False

    @property
    def how(self) -> str:
        """In words, for the release: what the first recorded step has settled, whatever batches came later."""
        return self._how

    def release(self, state: Any, step: int) -> NoisySum:
        """What this step of the only run makes public."""
        if not self._one_by_one:
            try:
                self._begin(step)
                self._record_all(step, at_once=False)
                self._parts_and_noise(step, self._feed.parts(step))
            except (RuntimeError, NotRecordable) as error:
                self._give_up(error, step)
            else:
                self._tell_ledgers()
                return self._noisy[0]
        return self._one_by_one[0].release(state, step)

    def take(self, state: Any, noisy: NoisySum, step: int) -> Any:
        """The state of the only run after it."""
        if not self._one_by_one:
            try:
                again = self._recording("take", step, self._take)
            except (RuntimeError, NotRecordable) as error:
                self._give_up(error, step, goes_on_at=step + 1)
            else:
                again()
                self._end(step)
                return state
        return self._one_by_one[0].take(state, noisy, step)

    def release_and_take(self, state: Any, step: int) -> Any:
        """The state of the only run after this step."""
        return self.all_at_once(step)[0]

    def all_at_once(self, step: int) -> list[Any]:
        """The states of all runs after this step: one recording, unless the batch takes several parts."""
        if not self._one_by_one:
            try:
                self._begin(step)
                self._record_all(step, at_once=True)
                parts = self._feed.parts(step)
                if self._sizes.is_one and len(parts) == 1 and step >= self._recorded_from:
                    self._feed.next_part()
                    last = self._recording("whole", step, self._whole)
                else:
                    self._parts_and_noise(step, parts)
                    last = self._recording("take", step, self._take)
            except (RuntimeError, NotRecordable) as error:
                self._give_up(error, step)
            else:
                self._tell_ledgers()
                last()
                self._end(step)
                return self._states
        runs = zip(self._one_by_one, self._states, strict=True)
        self._states = [own.release_and_take(state, step) for own, state in runs]
        return self._states

    def _tell_ledgers(self) -> None:
        for ledger in self._ledgers:
            ledger.made()

    def _begin(self, step: int) -> None:
        """What is not recorded: the methods' own draws, and the seeds of masks and noise."""
        for work, state in zip(self._runs, self._states, strict=True):
            work.method.begin_step(state, step)
        self._masks.reseed(partial(self._runs[0].randomness.seed_masks, step))
        self._noise.begin(step)

    def _record_all(self, step: int, at_once: bool) -> None:
        """In the first recorded step, also what its batch does not need: whether that works must not tell its size.

        The largest part comes first: its memory has room for all others.
        """
        if step == self._recorded_from:
            self._recording(("part", self._sizes.largest), step, partial(self._part, self._sizes.largest))
            self._recording("noise", step, self._add_noise)
            if at_once and self._sizes.is_one:
                self._recording("whole", step, self._whole)
            self._recording("take", step, self._take)
            self._is_settled = True

    def _end(self, step: int) -> None:
        """Outside of the graphs: the methods' work after a step."""
        for work, state in zip(self._runs, self._states, strict=True):
            work.method.end_step(state, step)

    def _parts_and_noise(self, step: int, parts: list[int]) -> None:
        for sums in self._sums:
            for (piece,) in joined(list(sums.values())):
                piece.zero_()
        for size in parts:
            self._feed.next_part()
            self._recording(("part", size), step, partial(self._part, size))()
        self._recording("noise", step, self._add_noise)()

    def _recording(self, kind: Any, step: int, work: Callable[[int], None]) -> Callable[[], None]:
        """What does this work: itself in the first steps, a recording of it later on."""
        if step < self._recorded_from:
            last = step == self._recorded_from - 1 and kind != "take"  # no update may be left half done
            return partial(self._recorder.without_waiting, partial(work, step)) if last else partial(work, step)
        key = kind, *self._levels(step)
        if key not in self._recordings:
            self._recordings[key] = self._recorder.record(partial(work, step), self._host_state)
        return self._recordings[key]

    def _levels(self, step: int) -> list[Any]:
        runs = zip(self._runs, self._states, strict=True)
        return [self._levels_at[step], *(work.method.phase(state, step) for work, state in runs)]

    def _host_state(self) -> list[Any]:
        """What must not change during a capture: modules, and generators on the host that a model might draw from."""
        masks = self._masks.on(torch.device("cpu")).get_state().numpy().tobytes()
        modules = [switches_of(work.checked.objective.model) for work in self._runs]
        return [masks, generators_of_the_process(), *modules]

    def _part(self, size: int, step: int, is_all: bool = False) -> None:
        """Add the clipped gradients of one part of the batch to the sums, or write them there if it is all of it."""

        def clip(run: tuple[Work, Any, Weights, Part]) -> None:
            work, state, sums, (x, y, present) = run
            onto = sums if self._sizes.adds_up else None
            how = {"into": sums} if is_all else {"together": self._sizes.together, "onto": onto}
            clipped = work.clipped(state, step, x, y, present=present, masks=self._masks, no_sync=True, **how)
            for name, total in sums.items():
                if clipped.gradients[name] is not total:
                    (total.copy_ if is_all else total.add_)(clipped.gradients[name])

        side_by_side(clip, zip(self._runs, self._states, self._sums, self._feed.read(size), strict=True))

    def _add_noise(self, step: int) -> None:
        """Add noise in place: to float64 sums, which are rounded afterwards, or to what is released, by the plan."""

        def add(run: tuple[Work, Weights, NoisySum]) -> None:
            work, sums, noisy = run
            types = {name: values.dtype for name, values in noisy.gradients.items()}
            if self._sizes.together > LARGEST_PART and not work.in_float64:
                shorten(sums, work.plan.clip_norm_at(step))
            clipped = ClippedSum(_copied(sums, self._noised(work, sums, noisy)), work.plan.clip_norm_at(step), types)
            _copied(add_noise(clipped, work.plan.noise_at(step), self._noise, step).gradients, noisy.gradients)

        side_by_side(add, zip(self._runs, self._sums, self._noisy, strict=True))

    @staticmethod
    def _noised(work: Work, sums: Weights, noisy: NoisySum) -> Weights:
        """What gets the noise: the float64 sums, if the plan has such large batches, else what is released."""
        return dict(sums if work.in_float64 else noisy.gradients)

    def _take(self, step: int) -> None:
        """Update and keep."""

        def move(run: tuple[Work, Any, NoisySum]) -> None:
            work, state, noisy = run
            if work.method.keep(work.method.update(state, noisy, step), step) is not state:
                raise NotRecordable(f"{type(work.method).__name__} makes a new state in every step")

        side_by_side(move, zip(self._runs, self._states, self._noisy, strict=True))

    def _whole(self, step: int) -> None:
        """A step whose batch is one part; its noise is drawn beside that."""
        is_cuda = self._runs[0].device.type == "cuda"  # whether it is captured or not, it draws the same
        with beside() as drawing:
            if is_cuda and all(work.plan.is_private for work in self._runs):
                runs = zip(self._runs, self._sums, self._noisy, strict=True)
                self._noise.draw_ahead([self._noised(*run) for run in runs])
        self._part(self._sizes.largest, step, is_all=True)
        join(drawing)
        self._add_noise(step)
        self._take(step)

    def _open_feed(self, first_step: int) -> Feed:
        work = self._runs[0]
        if isinstance(work.records, ResidentRecords):
            return ResidentFeed(work.records, [run.sampler for run in self._runs], self._sizes, first_step)
        batches = work.records.batches(work.sampler, first_step, work.plan.steps, work.execution.dataset_workers)
        return StreamedFeed(
            read_ahead(batches, work.device, work.read_when_asked), work.records.empty, self._sizes, work.device
        )

    def _give_up(self, error: Exception, step: int, goes_on_at: int | None = None) -> None:
        is_memory = isinstance(error, torch.OutOfMemoryError)  # whose text has sizes, which are those of a batch
        reason = "out of memory" if is_memory else (str(error).strip() or type(error).__name__).splitlines()[0]
        text = f"These steps cannot be recorded and are taken one by one, which is slower: {reason}"
        warn(text)
        if not self._is_settled:
            self._how = EagerSteps.how
        ledgers: Sequence[Ledger | None] = self._ledgers or [None] * len(self._runs)
        self._one_by_one = [
            EagerSteps(work, goes_on_at or step, own) for work, own in zip(self._runs, ledgers, strict=True)
        ]


def _copied(values: Weights, places: Weights) -> Weights:
    """The values in their places, where some of them may be already."""
    for name, place in places.items():
        if values[name].data_ptr() != place.data_ptr():
            place.copy_(values[name])
    return places


def _levels_by_step(plan: PrivacyPlan) -> list[tuple[float, float]]:
    return list(zip(by_step(plan.clip_norm, plan.steps), by_step(plan.noise_multiplier, plan.steps), strict=True))


class _Room:
    """Where a run's sums and releases lie, from the first step to the last.

    Sums of several parts are in float64, as those of many records always are.
    """

    def __init__(self, work: Work, state: Any, step: int, adds_up: bool) -> None:
        work.method.begin_step(state, step)
        where = work.method.weights(state, step)
        like = {
            name: wide(values) for name, values in (where.weights[0] if isinstance(where, Draws) else where).items()
        }
        shapes = {name: (2, *v.shape) if isinstance(where, Draws) else v.shape for name, v in like.items()}
        self.released = in_one_piece({name: like[name].new_empty(shapes[name]) for name in like})
        self.sums = self.released
        if adds_up:
            self.sums = in_one_piece({name: values.double() for name, values in self.released.items()})
