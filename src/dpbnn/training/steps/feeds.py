"""Poisson batches in parts of a fixed size, as captured steps need them: a part that is not full is padded.

A batch may have any size, zero included. It is handed out in as many parts as it takes; nearly always one is enough.
Padding is marked as absent and contributes exactly zero.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.data.records import Batch, ResidentRecords
from dpbnn.device.streams import beside, join
from dpbnn.privacy.noise.sampling import PoissonSampler, largest_batch
from dpbnn.training.steps.work import Work

__all__ = ["ResidentFeed", "Sizes", "StreamedFeed", "largest_part", "sizes_for"]

Rows = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Part = tuple[Tensor, Tensor, Tensor]
"""Inputs, targets, and which of them are records."""

DEVIATIONS = 4.0
"""How many deviations above its expectation a batch still fits one part: one in ten thousand needs a second one. Runs
that are captured together all take it if one needs it."""
MULTIPLE = 8
ROWS_AHEAD = 128
LARGE = 2**20
"""A model that writes out more numbers than this for each record is large: padding then costs more than launches."""
LARGE_PARTS = 3
"""In how many parts a large model takes a batch, unless the batch is much larger than expected."""
LARGE_SIZES = 24
"""How many sizes these parts may have."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that parts may have: multiples of `step`, and `largest`. Each has a graph of its own.

    `together` is how many records all parts of a batch have at most, but for one time in 10^30.
    """

    largest: int
    step: int
    together: int

    @staticmethod
    def of(num_records: int, sampling_rate: float, deviations: float, at_most: int | None) -> "Sizes":
        """One size that nearly every batch fits, unless that is more than a part may have."""
        expected = num_records * sampling_rate
        deviation = math.sqrt(expected * (1 - sampling_rate))
        likely = min(num_records, expected + deviations * deviation)
        together = largest_batch(num_records, sampling_rate)
        limit = min(at_most or LARGEST_PART, LARGEST_PART)
        if likely > limit:
            return Sizes(limit, max(1, limit // LARGE_SIZES), max(limit, together))
        size = min(limit, MULTIPLE * math.ceil(max(1, likely) / MULTIPLE))
        return Sizes(size, size, max(size, together))

    @property
    def is_one(self) -> bool:
        """Whether all parts have the same size."""
        return self.step == self.largest

    @property
    def adds_up(self) -> bool:
        """Whether parts are added up in float64: where float32 would round by more than a sum that is stored in it."""
        parts = math.ceil(self.together / self.largest)
        return not self.is_one or (parts > 1 and 2 * parts * self.together > LARGEST_PART)

    def split(self, count: int) -> list[int]:
        """The sizes of the parts in which so many records are taken: at least one, and all of the same."""
        parts = max(1, math.ceil(count / self.largest))
        share = max(1, math.ceil(count / parts))
        return [min(self.largest, self.step * math.ceil(share / self.step))] * parts


def largest_part(written_out: int, num_records: int, sampling_rate: float) -> int | None:
    """The largest part where the user sets no size: a large model takes a batch in several, others have no limit."""
    if written_out <= LARGE:
        return None
    expected = num_records * sampling_rate
    return max(1, math.ceil((expected + math.sqrt(expected * (1 - sampling_rate))) / LARGE_PARTS))


def sizes_for(runs: Sequence[Work]) -> Sizes:
    """The sizes of parts that suit all of these runs."""
    count = max(max(work.plan.dataset_size, len(work.records)) for work in runs)
    rate = max(work.plan.sampling_rate for work in runs)
    limits = [
        work.execution.micro_batch_size or largest_part(work.checked.numbers_written_out, count, rate) for work in runs
    ]
    deviations = DEVIATIONS if len(runs) == 1 else DEVIATIONS + 1
    return Sizes.of(count, rate, deviations, min(filter(None, limits), default=None))


class ResidentFeed:
    """All records are on the device, and behind them a row of zeros; batches are rows of numbers, sampled far ahead."""

    def __init__(
        self, records: ResidentRecords, samplers: Sequence[PoissonSampler], sizes: Sizes, first_step: int
    ) -> None:
        self._num_records = len(records)
        self._x, self._y = records.padded
        device = self._x.device
        self._samplers, self._sizes = samplers, sizes
        shape = ROWS_AHEAD, len(samplers), sizes.largest
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._outgoing = _Outgoing(shape, device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._parts: deque[list[int]] = deque()
        self._waiting: Rows = np.empty(0, dtype=np.int64)
        self._left = 0
        self._held = self._rows[0]
        self._sampling = ThreadPoolExecutor(1, "sampling")  # while others are used: a batch depends on its step alone
        self._next = self._sampling.submit(self._sample, first_step)

    def parts(self, step: int) -> list[int]:
        """The sizes of this step's parts, for the largest batch of all runs; steps are asked for in their order."""
        if not self._parts:
            parts, self._waiting = self._next.result()
            self._parts.extend(parts)
            self._next = self._sampling.submit(self._sample, step + ROWS_AHEAD)
        return self._parts.popleft()

    def next_part(self) -> None:
        """Send further rows to the device once all are used up; it goes from one to the next itself. Never captured."""
        if self._left == 0:
            self._left = min(len(self._waiting), ROWS_AHEAD)
            with self._outgoing.to(self._rows) as rows:
                rows[: self._left] = self._waiting[: self._left]
            self._waiting = self._waiting[self._left :]
            self._position.zero_()
        self._left -= 1

    def read(self, size: int) -> list[Part]:
        """The part that is ready, for each run; all records are looked up at once. May be captured."""
        rows = self._rows.index_select(0, self._position)[0, :, :size]
        every, by_run = rows.flatten(), (len(rows), size)
        with beside() as stream:
            self._position.add_(1)
            present = rows < self._num_records
            targets = self._y.index_select(0, every).unflatten(0, by_run)
        inputs = self._x.index_select(0, every).unflatten(0, by_run)
        join(stream)
        self._held = every  # the stream reads it: its memory must not be used again yet
        return list(zip(inputs, targets, present, strict=True))

    def _sample(self, first_step: int) -> tuple[list[list[int]], Rows]:
        """The sizes of the parts of each step from there on, and the rows of all parts for each run.

        Few operations on many rows: a thread that runs Python holds up all others.
        """
        drawn = [sampler.in_a_row(first_step, first_step + ROWS_AHEAD) for sampler in self._samplers]
        counts = np.stack([sizes for _, sizes in drawn])
        parts = [self._sizes.split(largest) for largest in counts.max(axis=0).tolist()]
        places = [(step, k * size, size) for step, sizes in enumerate(parts) for k, size in enumerate(sizes)]
        steps, starts, sizes = np.array(places).T
        filled = np.clip(counts[:, steps] - starts, 0, sizes)
        rows = np.full((len(drawn), len(places), self._sizes.largest), self._num_records)
        rows[np.arange(self._sizes.largest) < filled[..., None]] = np.concatenate([batches for batches, _ in drawn])
        return parts, rows.swapaxes(0, 1)


class _Outgoing:
    """Pinned memory in two places: one is written while the device reads the other."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        places = [torch.empty(shape, dtype=torch.int64, pin_memory=is_cuda) for _ in range(2)]
        self._places = cycle([(place, torch.cuda.Event() if is_cuda else None) for place in places])

    @contextmanager
    def to(self, target: Tensor) -> Iterator[Rows]:
        """Rows to be written, which are then copied to the target."""
        place, sent = next(self._places)
        if sent is not None:
            sent.synchronize()
        yield place.numpy()
        target.copy_(place, non_blocking=True)
        if sent is not None:
            sent.record()


class StreamedFeed:
    """Batches are read elsewhere, and copied to memory that graphs know."""

    def __init__(self, batches: Iterator[Batch], empty: Batch, sizes: Sizes, device: torch.device) -> None:
        self._batches, self._sizes = batches, sizes
        self._x, self._y = (part.new_zeros(sizes.largest, *part.shape[1:], device=device) for part in empty)
        self._present = torch.zeros(sizes.largest, dtype=torch.bool, device=device)
        self._waiting: deque[Batch] = deque()

    def parts(self, step: int) -> list[int]:
        """Read the batch of this step; the sizes of its parts."""
        x, y = next(self._batches)
        sizes = self._sizes.split(len(x))
        for position, size in enumerate(sizes):
            part = slice(position * size, (position + 1) * size)
            self._waiting.append((x[part], y[part]))
        return sizes

    def next_part(self) -> None:
        """Copy a part, and clear what is left of the one before; never captured."""
        x, y = self._waiting.popleft()
        for place, values in ((self._x, x), (self._y, y)):
            place[: len(values)].copy_(values)
            place[len(values) :].zero_()
        self._present[: len(x)].fill_(True)
        self._present[len(x) :].fill_(False)

    def read(self, size: int) -> list[Part]:
        """The part that was copied."""
        return [(self._x[:size], self._y[:size], self._present[:size])]
