"""Steps captured once as CUDA graphs and replayed: for one run, or for several side by side.

A step has pieces: each part of the batch (look records up, clip, add to the sum), the noise, and the update. A batch
that is larger than a part takes several, exactly. Steps whose levels and phase differ have graphs of their own. Where
one part is enough and nothing has to happen in between, all pieces are one graph.

Guarantees:
    Captured steps release what eager steps release, but for rounding, from the same key.
    Padding contributes exactly zero.
    What cannot be captured is taken one by one, and the release says so.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dpbnn._warn import warn
from dpbnn.clipping import clip_and_sum
from dpbnn.clipping.gradient import shorten
from dpbnn.clipping.objective import wide
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.data.records import ResidentRecords, generators_of_the_process
from dpbnn.device.flat import in_one_piece, joined
from dpbnn.device.streams import beside, branches, join
from dpbnn.models.replica import switches_of
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.privacy.noise.source import AddsNoise
from dpbnn.schedule import by_step
from dpbnn.training.steps.eager import EagerSteps, batches_of
from dpbnn.training.steps.feeds import DEVIATIONS, Feed, Part, ResidentFeed, Sizes, StreamedFeed, largest_part
from dpbnn.training.steps.graphs import Graphs, NotCapturable
from dpbnn.training.steps.work import Work
from dpbnn.types import ClippedSum, Draws, NoisySum, Weights

__all__ = ["CapturedSteps", "Recorder", "why_not_captured"]

WARM_UP = 1
"""Steps before the first capture: they load libraries and create what an optimizer creates late. In the last of them,
waiting for the device is an error."""


Piece = tuple[Any, ...]
"""Of a step, what one graph holds: its name, and for a part of the batch the size."""
NOISE: Piece = ("noise",)
UPDATE: Piece = ("update",)
WHOLE: Piece = ("whole",)


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Do it again."""
        ...


class Recorder(Protocol):
    """Makes CUDA graphs."""

    def without_waiting(self) -> AbstractContextManager[Any]:
        """Inside, whatever would make the host wait for the device raises."""
        ...

    def capture(self, host_state: Callable[[], Any]) -> AbstractContextManager[Graph]:
        """Capture the work inside, without doing it; raises if it changes the host's state."""
        ...


def why_not_captured(work: Work, state: Any, step: int) -> str | None:
    """Why graphs cannot be used; None if they can, "" if they were not requested."""
    if work.device.type != "cuda" or not work.execution.graphs:
        return ""
    if work.diagnostics.wanted:
        return "unsafe_diagnostics looks at every step"
    if work.method.begin_step(state, step) is None:
        return f"{type(work.method).__name__} has no phase: it, or its optimizer, counts on the host"
    return None


class CapturedSteps:
    """The steps of runs that share a device and a number of steps; their states are changed in place.

    The ledgers of the runs, if there are any, are told of every noisy sum.
    """

    def __init__(
        self,
        runs: Sequence[Work],
        states: Sequence[Any],
        first_step: int,
        recorder: Recorder | None = None,
        ledgers: Sequence[Ledger] = (),
    ) -> None:
        self.states = list(states)
        self._runs, self._ledgers = list(runs), list(ledgers)
        self._device = runs[0].device
        self._noise = runs[0].noise.in_graphs(self._device)
        self._masks = runs[0].randomness.masks(first_step)
        generators = [self._masks.on(self._device), *([] if self._noise is None else [self._noise.device_generator])]
        self._recorder: Recorder = recorder or Graphs(self._device, generators)
        self._sizes = _sizes(runs)
        rooms = [_room(work, state, first_step, self._sizes.adds_up) for work, state in zip(runs, states, strict=True)]
        self._noisy, self._sums = [NoisySum(released) for released, _ in rooms], [sums for _, sums in rooms]
        self._feed = self._open_feed(first_step)
        self._levels = list(zip(*(_levels_by_step(work) for work in runs), strict=True))
        self._phases: list[Hashable] = []
        self._captured_from = first_step + WARM_UP
        self._graphs: dict[Hashable, Graph] = {}
        self._eager: EagerSteps | None = None
        self._how, self._is_settled, self._why_not = "captured and replayed (CUDA graphs)", False, ""

    @property
    def how(self) -> str:
        """In words, for the release: settled by the first captured step, whatever batches come later."""
        return self._how

    def release(self, step: int) -> Sequence[NoisySum]:
        """What this step makes public of each run."""
        if self._eager is None:
            try:
                self._begin(step)
                for piece in self._to_capture_first(step, fused=False):
                    self._run(piece, step, replay=False)
                for piece in self._up_to_the_noise(step, self._feed.parts(step)):
                    self._run(piece, step)
            except (RuntimeError, NotCapturable) as error:
                self._give_up(error, step)
            else:
                self._tell_ledgers()
                return self._noisy
        assert self._eager is not None
        return self._eager.release(step)

    def take(self, noisy: Sequence[NoisySum], step: int) -> None:
        """Update the states."""
        if self._eager is None:
            try:
                self._run(UPDATE, step, replay=False)
            except (RuntimeError, NotCapturable) as error:
                self._give_up(error, step, goes_on_at=step + 1)
            else:
                self._finish(UPDATE, step)
                return
        assert self._eager is not None
        self._eager.take(noisy, step)

    def release_and_take(self, step: int) -> None:
        """Both: one graph, unless the batch takes several parts or something has to happen between graphs."""
        if self._eager is None:
            try:
                self._begin(step)
                for piece in self._to_capture_first(step, fused=True):
                    self._run(piece, step, replay=False)
                sizes, last = self._feed.parts(step), UPDATE
                if self._can_fuse and len(sizes) == 1 and step >= self._captured_from:
                    self._feed.next_part()
                    last = WHOLE
                else:
                    for piece in self._up_to_the_noise(step, sizes):
                        self._run(piece, step)
                self._run(last, step, replay=False)
            except (RuntimeError, NotCapturable) as error:
                self._give_up(error, step)
            else:
                self._tell_ledgers()
                self._finish(last, step)
                return
        assert self._eager is not None
        self._eager.release_and_take(step)

    @property
    def _can_fuse(self) -> bool:
        """Whether nothing has to happen between the graphs of a step."""
        is_one_process = all(work.sum_over_processes is None for work in self._runs)
        return is_one_process and self._noise is not None and self._sizes.is_one

    def _begin(self, step: int) -> None:
        """What no graph holds: the methods' own draws, and the seeds of masks and noise."""
        pairs = zip(self._runs, self.states, strict=True)
        self._phases = [work.method.begin_step(state, step) for work, state in pairs]
        randomness = self._runs[0].randomness
        self._masks.reseed(lambda generator: randomness.seed_masks(step, generator))
        if self._noise is not None:
            self._noise.begin(step)

    def _to_capture_first(self, step: int, fused: bool) -> Iterator[Piece]:
        """In the first captured step, all pieces, also those that its batch does not need.

        Whether they can be captured must not tell its size. The largest part comes first: its memory has room for the
        others.
        """
        if step == self._captured_from:
            if self._why_not:
                raise NotCapturable(self._why_not)
            yield "part", self._sizes.largest
            if self._noise is not None:
                yield NOISE
            if fused and self._can_fuse:
                yield WHOLE
            yield UPDATE
            self._is_settled = True

    def _up_to_the_noise(self, step: int, sizes: Sequence[int]) -> Iterator[Piece]:
        """The pieces of a step before its update; what no graph holds is done in between."""
        for sums in self._sums:
            for (numbers,) in joined(list(sums.values())):
                numbers.zero_()
        for size in sizes:
            self._feed.next_part()
            yield "part", size
        for work, sums in zip(self._runs, self._sums, strict=True):
            if work.sum_over_processes is not None:
                work.sum_over_processes(sums)
        if self._noise is None:
            self._add_noise(step)
        else:
            yield NOISE

    def _run(self, piece: Piece, step: int, replay: bool = True) -> None:
        """Do this work: directly in the first steps; later by a graph, which is captured if it does not exist yet."""
        name, *size = piece
        if step < self._captured_from:
            must_not_wait = step == self._captured_from - 1 and piece != UPDATE  # which must not be left half done
            if replay:
                with self._recorder.without_waiting() if must_not_wait else nullcontext():
                    self._work[name](self, step, *size)
            return
        key = piece, self._levels[step], *self._phases
        if key not in self._graphs:
            with self._recorder.capture(self._host_state) as graph:
                self._work[name](self, step, *size)
            self._graphs[key] = graph
        if replay:
            self._graphs[key].replay()

    def _finish(self, piece: Piece, step: int) -> None:
        """The last piece of a step that is charged, and the methods' work after it, which no graph holds."""
        self._run(piece, step)
        for work, state in zip(self._runs, self.states, strict=True):
            work.method.end_step(state, step)

    def _host_state(self) -> list[Any]:
        """What a capture must not change: modules, states, and generators on the host that a model might draw from."""
        masks = self._masks.on(torch.device("cpu")).get_state().numpy().tobytes()
        modules = [switches_of(work.checked.objective.model) for work in self._runs]
        return [masks, generators_of_the_process(), *modules, *map(_host_part, self.states)]

    def _part(self, step: int, size: int) -> None:
        """Add the clipped gradients of one part of the batch to the sums."""
        onto_sums = self._sizes.adds_up
        for work, state, sums, (x, y, present) in branches(self._fed(size)):
            clipped = clip_and_sum(
                work.checked,
                work.method.weights(state, step),
                x,
                y,
                work.clipping_at(step),
                present=present,
                masks=self._masks,
                no_sync=True,
                together=self._sizes.together,
                onto=sums if onto_sums else None,
            )
            for name, total in sums.items():
                if clipped.gradients[name] is not total:
                    total.add_(clipped.gradients[name])

    def _whole(self, step: int) -> None:
        """All of a step whose batch is one part; on a CUDA device its noise is drawn while records are clipped."""
        with beside() as drawing:
            sources = self._noise_sources()
        for work, state, sums, (x, y, present) in branches(self._fed(self._sizes.largest)):
            clipped = clip_and_sum(
                work.checked,
                work.method.weights(state, step),
                x,
                y,
                work.clipping_at(step),
                present=present,
                masks=self._masks,
                no_sync=True,
                into=sums,
            )
            _copied(clipped.gradients, sums)
        join(drawing)
        self._add_noise(step, sources)
        self._take(step)

    def _noise_sources(self) -> list[AddsNoise]:
        """What adds each run's noise. That of all runs is drawn together, so that every kind of graph draws alike."""
        if self._noise is None:
            return [work.noise for work in self._runs]
        private = [own for own in self._sums_and_releases() if own[0].plan.is_private]
        drawn = iter(self._noise.sources([self._noised(*own) for own in private]))
        return [next(drawn) if work.plan.is_private else self._noise for work in self._runs]

    def _add_noise(self, step: int, sources: Sequence[AddsNoise] | None = None) -> None:
        """Add noise in place: to float64 sums, which are rounded afterwards, or to what is released, by the plan."""
        sources = self._noise_sources() if sources is None else sources
        for (work, sums, noisy), source in branches(list(zip(self._sums_and_releases(), sources, strict=True))):
            types = {name: values.dtype for name, values in noisy.gradients.items()}
            clip_norm = work.plan.clip_norm_at(step)
            if self._sizes.together > LARGEST_PART and not work.in_float64:
                shorten(sums, clip_norm)
            clipped = ClippedSum(_copied(sums, self._noised(work, sums, noisy)), clip_norm, types)
            released = add_noise(clipped, work.plan.noise_at(step), source, step)
            _copied(released.gradients, noisy.gradients)

    def _take(self, step: int) -> None:
        """Update the states in place."""
        for index, (work, noisy) in branches(list(enumerate(zip(self._runs, self._noisy, strict=True)))):
            state = work.method.update(self.states[index], noisy, step)
            if state is not self.states[index]:
                self._why_not = f"{type(work.method).__name__} makes a new state in every step"
                if step >= self._captured_from:
                    raise NotCapturable(self._why_not)
                self.states[index] = state

    _work: ClassVar[Mapping[str, Callable[..., None]]] = {
        "part": _part,
        "noise": _add_noise,
        "update": _take,
        "whole": _whole,
    }

    def _fed(self, size: int) -> list[tuple[Work, Any, Weights, Part]]:
        return list(zip(self._runs, self.states, self._sums, self._feed.read(size), strict=True))

    def _sums_and_releases(self) -> list[tuple[Work, Weights, NoisySum]]:
        return list(zip(self._runs, self._sums, self._noisy, strict=True))

    @staticmethod
    def _noised(work: Work, sums: Weights, noisy: NoisySum) -> Weights:
        """What gets the noise: the float64 sums, if the plan has such large batches, else what is released."""
        return dict(sums if work.in_float64 else noisy.gradients)

    def _tell_ledgers(self) -> None:
        for ledger in self._ledgers:
            ledger.made()

    def _open_feed(self, first_step: int) -> Feed:
        work = self._runs[0]
        if isinstance(work.records, ResidentRecords):
            return ResidentFeed(work.records, [run.sampler for run in self._runs], self._sizes, first_step)
        return StreamedFeed(batches_of(work, first_step), work.records.empty, self._sizes, work.device)

    def _give_up(self, error: Exception, step: int, goes_on_at: int | None = None) -> None:
        is_memory = isinstance(error, torch.OutOfMemoryError)  # whose text has sizes, which are those of a batch
        reason = "out of memory" if is_memory else (str(error).strip() or type(error).__name__).splitlines()[0]
        warn(f"These steps cannot be captured as CUDA graphs; they are taken one by one, which is slower: {reason}")
        if not self._is_settled:
            self._how = EagerSteps.how
        self._eager = EagerSteps(self._runs, self.states, goes_on_at or step, self._ledgers)
        self.states = self._eager.states  # one list from here on


def _sizes(runs: Sequence[Work]) -> Sizes:
    """The sizes of parts that suit all of these runs."""
    count = max(work.size_for_memory for work in runs)
    rate = max(work.plan.sampling_rate for work in runs)
    limits = [
        work.execution.micro_batch_size or largest_part(work.checked.numbers_written_out, count, rate) for work in runs
    ]
    deviations = DEVIATIONS if len(runs) == 1 else DEVIATIONS + 1
    return Sizes.of(count, rate, deviations, min(filter(None, limits), default=None))


def _room(work: Work, state: Any, step: int, adds_up: bool) -> tuple[Weights, Weights]:
    """Where a run's releases and sums lie, from the first step to the last.

    Sums of several parts are float64, as sums of many records always are; else both are the same memory.
    """
    work.method.begin_step(state, step)
    where = work.method.weights(state, step)
    is_joint = isinstance(where, Draws)
    like = {name: wide(values) for name, values in (where.weights[0] if isinstance(where, Draws) else where).items()}
    released = in_one_piece({n: v.new_empty((2, *v.shape) if is_joint else v.shape) for n, v in like.items()})
    return released, in_one_piece({n: v.double() for n, v in released.items()}) if adds_up else released


def _copied(values: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values in their places, where some of them may be already."""
    for name, place in places.items():
        if values[name].data_ptr() != place.data_ptr():
            place.copy_(values[name])
    return dict(places)


def _levels_by_step(work: Work) -> list[tuple[float, float]]:
    plan = work.plan
    return list(zip(by_step(plan.clip_norm, plan.steps), by_step(plan.noise_multiplier, plan.steps), strict=True))


def _host_part(state: Any) -> Hashable:
    """Plain values of a state, and where its tensors lie: a graph reads and writes what it was captured with."""
    seen: list[Hashable] = []
    for name, value in vars(state).items():
        if isinstance(value, (bool, int, float, str)):
            seen.append((name, value))
        for key, inner in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(inner, Tensor):
                seen.append((name, key, inner.data_ptr()))
    return tuple(seen)
