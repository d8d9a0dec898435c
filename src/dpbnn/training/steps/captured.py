"""Steps captured once as CUDA graphs and replayed: for one run, or for several side by side.

A step has pieces: each part of the batch (look records up, clip, add to the sum), the noise, and the update. A batch
that is larger than a part takes several, exactly. Steps whose levels and phase differ have graphs of their own. Where
one part is enough and nothing has to happen in between, all pieces are one graph.

Guarantees:
    Captured steps release what eager steps release, but for rounding, from the same key.
    Padding contributes exactly zero.
    What cannot be captured is taken one by one, and the release says so.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dpbnn._warn import warn
from dpbnn.clipping import Sums, clip_and_sum
from dpbnn.data.process_generators import generators_of_the_process
from dpbnn.data.records import ResidentRecords
from dpbnn.device.streams import beside, in_streams, join
from dpbnn.models.replica import structure_of
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.source import AddsNoise
from dpbnn.schedule import by_step
from dpbnn.training.steps.contents import Contents
from dpbnn.training.steps.eager import EagerSteps, batches_of
from dpbnn.training.steps.feeds import ResidentFeed, StreamedFeed, sizes_for
from dpbnn.training.steps.graphs import Graphs, NoSync, NotCapturable
from dpbnn.training.steps.room import Room, copied
from dpbnn.training.steps.work import Work
from dpbnn.types import ClippedSum, NoisySum

__all__ = ["CapturedSteps", "why_not_captured"]

WARM_UP = 1
"""Steps before the first capture: they load libraries and create what an optimizer creates late. In the last of them,
waiting for the device is an error."""

Piece = tuple[Any, ...]
"""What one graph holds of a step: a method of `CapturedSteps`, and for a part of the batch its size."""
NOISE: Piece = ("_add_noise",)
UPDATE: Piece = ("_take",)
WHOLE: Piece = ("_whole",)

Undone = tuple[AbstractContextManager[Any], Callable[[], None]]
"""Work that Python has to do, and the context to do it in, such as a capture."""


def why_not_captured(work: Work, state: Any, step: int) -> str | None:
    """Why graphs cannot be used; None if they can, "" if they were not requested."""
    if work.device.type != "cuda" or not work.execution.graphs:
        return ""
    if work.diagnostics.enabled:
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
        graphs: Graphs | None = None,
        ledgers: Sequence[Ledger] = (),
    ) -> None:
        self.states = list(states)
        self._runs, self._ledgers = list(runs), list(ledgers)
        self._device = runs[0].device
        self._noise = runs[0].noise.in_graphs(self._device)
        self._masks = runs[0].randomness.masks(first_step)
        generators = [self._masks.on(self._device), *([] if self._noise is None else [self._noise.device_generator])]
        self._graphs = graphs or Graphs(self._device, generators)
        self._sizes = sizes_for(runs)
        pairs = zip(runs, states, strict=True)
        self._rooms = [Room.of(work, state, first_step, self._sizes.adds_up) for work, state in pairs]
        self._feed = self._open_feed(first_step)
        schedules = [level for work in runs for level in (work.plan.clip_norm, work.plan.noise_multiplier)]
        self._levels = list(zip(*(by_step(schedule, runs[0].plan.steps) for schedule in schedules), strict=True))
        self._phases: list[Hashable] = []
        self._captured_from = first_step + WARM_UP
        self._captured: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._eager: EagerSteps | None = None
        self._why_not = ""
        self.how, self._is_settled = "captured and replayed (CUDA graphs)", False

    def release(self, step: int) -> Sequence[NoisySum]:
        """What this step makes public of each run."""
        if self._eager is None:
            with self._eager_on_errors(step):
                for context, work in self._before(UPDATE, step, self._begin(step)):
                    with context:
                        work()
        if self._eager is not None:
            return self._eager.release(step)
        self._tell_ledgers()
        return [room.noisy for room in self._rooms]

    def take(self, noisy: Sequence[NoisySum], step: int) -> None:
        """Update the states with what was released."""
        if self._eager is None:
            self._finish(UPDATE, step)
        else:
            self._eager.take(noisy, step)

    def release_and_take(self, step: int) -> None:
        """Release and update: one graph, unless the batch takes several parts or the host has work between graphs."""
        last = UPDATE
        if self._eager is None:
            with self._eager_on_errors(step):
                sizes = self._begin(step)
                if self._can_fuse and len(sizes) == 1 and step >= self._captured_from:
                    last = WHOLE
                for context, work in self._before(last, step, sizes, *([WHOLE] if self._can_fuse else [])):
                    with context:
                        work()
        if self._eager is not None:
            self._eager.release_and_take(step)
        else:
            self._tell_ledgers()
            self._finish(last, step)

    @contextmanager
    def _eager_on_errors(self, step: int) -> Iterator[None]:
        """If the work inside fails, take eager steps from this one on.

        The first captured step settles `how`: no later batch may change it.
        """
        try:
            yield
        except (RuntimeError, NotCapturable) as error:
            is_memory = isinstance(error, torch.OutOfMemoryError)  # whose text has sizes, which are those of a batch
            reason = "out of memory" if is_memory else (str(error).strip() or type(error).__name__).splitlines()[0]
            warn(f"These steps cannot be captured as CUDA graphs; they are taken one by one, which is slower: {reason}")
            if not self._is_settled:
                self.how = EagerSteps.how
            self._eager = EagerSteps(self._runs, self.states, step, self._ledgers)
            self.states = self._eager.states  # one list from here on

    @property
    def _can_fuse(self) -> bool:
        """Whether nothing has to happen between the graphs of a step."""
        is_one_process = all(work.sum_over_processes is None for work in self._runs)
        return is_one_process and self._noise is not None and self._sizes.is_one

    def _begin(self, step: int) -> list[int]:
        """What no graph holds: the methods' draws, the seeds of masks and noise, and how large the parts are."""
        pairs = zip(self._runs, self.states, strict=True)
        self._phases = [work.method.begin_step(state, step) for work, state in pairs]
        randomness = self._runs[0].randomness
        self._masks.reseed(lambda generator: randomness.seed_masks(step, generator))
        if self._noise is not None:
            self._noise.begin(step)
        return self._feed.parts(step)

    def _before(self, last: Piece, step: int, sizes: Sequence[int], *others: Piece) -> Iterator[Undone]:
        """The work of a step that Python must do before the last piece is replayed, which is captured here too.

        What is captured is replayed in between. The first captured step captures all pieces, among them `others` and
        those that its batch does not need: whether they can be captured must not tell its size. The largest part comes
        first: its memory has room for the others.
        """
        if step == self._captured_from:
            if self._why_not:
                raise NotCapturable(self._why_not)
            noise = [] if self._noise is None else [NOISE]
            yield from self._captures([("_part", self._sizes.largest), *noise, *others, UPDATE], step)
            self._is_settled = True
        if last == WHOLE:
            self._feed.next_part()
        else:
            for room in self._rooms:
                room.clear()
            for size in sizes:
                self._feed.next_part()
                yield from self._done(("_part", size), step)
            for room in self._rooms:
                room.work.add_other_processes(room.sums)
            if self._noise is None:
                self._add_noise(step)
            else:
                yield from self._done(NOISE, step)
        yield from self._captures([last], step)

    def _done(self, piece: Piece, step: int) -> Iterator[Undone]:
        """Work that Python does itself in the first steps, and captures once before it is replayed in the others."""
        if step < self._captured_from:
            must_not_wait = step == self._captured_from - 1
            yield NoSync(self._device.type) if must_not_wait else nullcontext(), self._work(piece, step)
        else:
            yield from self._captures([piece], step)
            self._captured[self._key(piece, step)].replay()

    def _captures(self, pieces: Sequence[Piece], step: int) -> Iterator[Undone]:
        """The captures of these pieces, as far as they have no graph yet; none in the first steps."""
        for piece in pieces if step >= self._captured_from else ():
            if self._key(piece, step) not in self._captured:
                yield self._capture(self._key(piece, step)), self._work(piece, step)

    @contextmanager
    def _capture(self, key: Hashable) -> Iterator[None]:
        before = [Contents(state) for state in self.states]
        try:
            with self._graphs.capture(self._host_state) as graph:
                yield
        except BaseException:
            for contents in before:
                contents.put_back()  # what a capture has assigned was never computed
            raise
        self._captured[key] = graph

    def _key(self, piece: Piece, step: int) -> Hashable:
        return piece, self._levels[step], *self._phases

    def _work(self, piece: Piece, step: int) -> Callable[[], None]:
        method, *size = piece
        return partial(getattr(self, method), step, *size)

    def _finish(self, last: Piece, step: int) -> None:
        """The last piece of a step that is charged, and the methods' work after it, which no graph holds."""
        if step < self._captured_from:
            self._take(step)
        else:
            self._captured[self._key(last, step)].replay()
        for work, state in zip(self._runs, self.states, strict=True):
            work.method.end_step(state, step)

    def _host_state(self) -> list[Any]:
        """What a capture must not change: modules, states, and generators on the host that a model might draw from."""
        masks = self._masks.on(torch.device("cpu")).get_state().numpy().tobytes()
        modules = [structure_of(work.checked.objective.model) for work in self._runs]
        return [masks, generators_of_the_process(), *modules, *map(Contents, self.states)]

    def _part(self, step: int, size: int) -> None:
        """Add the clipped gradients of one part of the batch to the sums."""
        for room, clipped_sum in self._clipped_sums(step, size):
            sums = Sums(room.sums if room.adds_up else {}, room.adds_up, self._sizes.together)
            clipped = clipped_sum(sums=sums).gradients
            for name, total in room.sums.items():
                if clipped[name] is not total:
                    total.add_(clipped[name])

    def _whole(self, step: int) -> None:
        """All of a step whose batch is one part; on a CUDA device its noise is drawn while records are clipped."""
        with beside() as drawing:
            sources = self._noise_sources()
        for room, clipped_sum in self._clipped_sums(step, self._sizes.largest):
            copied(clipped_sum(sums=Sums(room.sums)).gradients, room.sums)
        join(drawing)
        self._add_noise(step, sources)
        self._take(step)

    def _clipped_sums(self, step: int, size: int) -> Iterator[tuple[Room, Callable[..., ClippedSum]]]:
        """What clips and adds up the part that is ready, for each run."""
        parts = self._feed.read(size)
        for room, state, (x, y, present) in in_streams(list(zip(self._rooms, self.states, parts, strict=True))):
            work = room.work
            settings = replace(work.clipping_at(step), no_sync=True)
            given = work.checked, work.method.weights(state, step), x, y, settings
            yield room, partial(clip_and_sum, *given, present=present, masks=self._masks)

    def _noise_sources(self) -> list[AddsNoise]:
        """What adds each run's noise. That of all runs is drawn together, so that every kind of graph draws alike."""
        if self._noise is None:
            return [work.noise for work in self._runs]
        private = [room.noised for room in self._rooms if room.work.plan.is_private]
        drawn = iter(self._noise.sources(private))
        return [next(drawn) if work.plan.is_private else self._noise for work in self._runs]

    def _add_noise(self, step: int, sources: Sequence[AddsNoise] | None = None) -> None:
        """Add noise in place: to float64 sums, which are rounded afterwards, or to what is released, by the plan."""
        sources = self._noise_sources() if sources is None else sources
        for room, source in in_streams(list(zip(self._rooms, sources, strict=True))):
            room.add_noise(step, source, self._sizes.together)

    def _take(self, step: int) -> None:
        """Update the states in place."""
        for index, room in in_streams(list(enumerate(self._rooms))):
            before = Contents(self.states[index]) if step < self._captured_from else None
            state = room.work.method.update(self.states[index], room.noisy, step)
            reason = _why_not_again(before, self.states[index], state, room.noisy)
            if reason:
                self._why_not = f"{type(room.work.method).__name__} {reason}"
                if step >= self._captured_from:
                    raise NotCapturable(self._why_not)
            self.states[index] = state

    def _tell_ledgers(self) -> None:
        for ledger in self._ledgers:
            ledger.made()

    def _open_feed(self, first_step: int) -> ResidentFeed | StreamedFeed:
        work = self._runs[0]
        if isinstance(work.records, ResidentRecords):
            return ResidentFeed(work.records, [run.sampler for run in self._runs], self._sizes, first_step)
        return StreamedFeed(batches_of(work, first_step), work.records.empty, self._sizes, work.device)


def _why_not_again(before: Contents | None, state: Any, updated: Any, noisy: NoisySum) -> str:
    """Why an update must not be captured, as far as one that Python has run shows it; "" if it may be."""
    if updated is not state:
        return "makes a new state in every step"
    if before is None:
        return ""
    after = Contents(updated)
    if not before.still_in(after):
        return "replaces tensors or numbers of its state, where a graph would go on with the old ones"
    if after.shares_memory_with(noisy.gradients.values()):
        return "keeps a released sum itself, where the next one will lie; let it keep a copy"
    return ""
