"""Poisson batches in parts of a fixed size, as recorded steps need them: a part that is not full is padded.

A batch may have any size, also none. It is handed out in as many parts as it takes, at least one; nearly always one is
enough. Padding is marked as absent and contributes exactly zero.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpbnn.branches import beside, join
from dpbnn.clipping.gradient import LARGEST_FLOAT32_SUM
from dpbnn.privacy.sampling import PoissonSampler
from dpbnn.records import Batch, ResidentRecords

__all__ = ["DEVIATIONS", "Feed", "Part", "ResidentFeed", "StreamedFeed", "largest_part", "part_sizes", "split"]

Part = tuple[Tensor, Tensor, Tensor]
"""Inputs, targets, and which of them are records."""

DEVIATIONS = 3.0
"""How far above its expectation a batch still fits one part: one in several hundred needs another. Of runs that are
recorded together all need another if one does."""
MULTIPLE = 8
ROWS_AHEAD = 128
LARGE = 2**20
"""Numbers written out for each record from which on padding costs more than launches."""
LARGE_PARTS = 2
"""In how many parts a large model takes a batch: padding costs it more than launches, and gradients take memory."""


def part_sizes(num_records: int, sampling_rate: float, deviations: float, at_most: int | None) -> tuple[int, ...]:
    """The sizes that parts may have: one that nearly every batch fits, or a whole, a half and a quarter of the most."""
    expected = num_records * sampling_rate
    likely = min(num_records, expected + deviations * math.sqrt(expected * (1 - sampling_rate)))
    limit = min(at_most or LARGEST_FLOAT32_SUM, LARGEST_FLOAT32_SUM)
    if likely <= limit:
        return (min(limit, MULTIPLE * math.ceil(max(1, likely) / MULTIPLE)),)
    return tuple(sorted({limit, math.ceil(limit / 2), math.ceil(limit / 4)}, reverse=True))


def split(count: int, sizes: tuple[int, ...]) -> list[int]:
    """The sizes of the parts in which so many records are taken, at least one; the last ones pad little."""
    whole, rest = divmod(count, sizes[0])
    parts = [sizes[0]] * whole
    if rest or not parts:
        choices = [[size] for size in sizes] + ([list(sizes[1:])] if len(sizes) > 2 else [])
        parts += min((choice for choice in choices if sum(choice) >= rest), key=sum)
    return parts


def largest_part(written_out: int, expected: float) -> int | None:
    """What a part may have at most, where nobody says: a large model takes a batch in several."""
    return MULTIPLE * math.ceil(max(1, expected / LARGE_PARTS) / MULTIPLE) if written_out > LARGE else None


class Feed(Protocol):
    """Hands out the parts of each step's batch, for one run or several."""

    def parts(self, step: int) -> list[int]:
        """The sizes of this step's parts; steps are asked for in their order."""
        ...

    def next_part(self) -> None:
        """Make ready for the next part; never recorded."""
        ...

    def read(self, size: int) -> list[Part]:
        """The part that is ready, for each run; may be recorded."""
        ...


class ResidentFeed:
    """All records are on the device, and behind them a row of zeros; batches are rows of numbers, sampled far ahead."""

    def __init__(
        self, records: ResidentRecords, samplers: Sequence[PoissonSampler], sizes: tuple[int, ...], step: int
    ) -> None:
        self._num_records = len(records)
        self._x, self._y = records.padded
        device = self._x.device
        self._samplers, self._sizes, self._step = samplers, sizes, step
        self._rows = torch.zeros(ROWS_AHEAD, len(samplers), sizes[0], dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._waiting: deque[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = deque()
        self._parts: deque[list[int]] = deque()
        self._left = 0
        self._held = self._rows[0]

    def parts(self, step: int) -> list[int]:
        """Those of the largest batch of this step."""
        if not self._parts:
            self._sample()
        return self._parts.popleft()

    def next_part(self) -> None:
        """Send further rows to the device once all are used up; the device itself goes from one to the next."""
        if self._left == 0:
            self._left = min(len(self._waiting), ROWS_AHEAD)
            rows = torch.from_numpy(np.stack([self._waiting.popleft() for _ in range(self._left)]))
            if self._rows.is_cuda:
                rows = rows.pin_memory()
            self._rows[: self._left].copy_(rows, non_blocking=True)
            self._position.zero_()
        self._left -= 1

    def read(self, size: int) -> list[Part]:
        """Look the records up."""
        rows = self._rows.index_select(0, self._position)[0, :, :size]
        with beside() as branch:
            self._position.add_(1)
            present = rows < self._num_records
            targets = [self._y.index_select(0, own) for own in rows]
        inputs = [self._x.index_select(0, own) for own in rows]
        join(branch)
        self._held = rows  # which the branch has used
        return list(zip(inputs, targets, present, strict=True))

    def _sample(self) -> None:
        for step in range(self._step, self._step + ROWS_AHEAD):
            batches = [sampler.batch(step) for sampler in self._samplers]
            parts, position = split(max(map(len, batches)), self._sizes), 0
            for size in parts:
                rows = np.full((len(batches), self._sizes[0]), self._num_records)
                for own, batch in zip(rows, batches, strict=True):
                    part = batch[position : position + size]
                    own[: len(part)] = part
                self._waiting.append(rows)
                position += size
            self._parts.append(parts)
        self._step += ROWS_AHEAD


class StreamedFeed:
    """Batches come from elsewhere and are copied to a place that stays."""

    def __init__(self, batches: Iterator[Batch], empty: Batch, sizes: tuple[int, ...], device: torch.device) -> None:
        self._batches, self._sizes = batches, sizes
        self._x, self._y = (v.new_zeros(sizes[0], *v.shape[1:], device=device) for v in empty)
        self._present = torch.zeros(sizes[0], dtype=torch.bool, device=device)
        self._waiting: deque[Batch] = deque()

    def parts(self, step: int) -> list[int]:
        """Read the batch of this step."""
        x, y = next(self._batches)
        sizes, position = split(len(x), self._sizes), 0
        for size in sizes:
            self._waiting.append((x[position : position + size], y[position : position + size]))
            position += size
        return sizes

    def next_part(self) -> None:
        """Copy, and clear what is left of the part before."""
        x, y = self._waiting.popleft()
        for place, values in ((self._x, x), (self._y, y)):
            place[: len(values)].copy_(values)
            place[len(values) :].zero_()
        self._present[: len(x)].fill_(True)
        self._present[len(x) :].fill_(False)

    def read(self, size: int) -> list[Part]:
        """What was copied."""
        return [(self._x[:size], self._y[:size], self._present[:size])]
