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

__all__ = ["DEVIATIONS", "Feed", "Part", "ResidentFeed", "StreamedFeed", "largest_part", "part_size"]

Part = tuple[Tensor, Tensor, Tensor]
"""Inputs, targets, and which of them are records."""

DEVIATIONS = 3.0
"""How far above its expectation a batch still fits one part: one in several hundred needs another. Of runs that are
recorded together all need another if one does."""
MULTIPLE = 8
ROWS_AHEAD = 128
LARGE = 2**20
"""Numbers written out for each record from which on padding costs more than launches."""
SMALL_PARTS = 8


def part_size(num_records: int, sampling_rate: float, deviations: float, at_most: int | None) -> tuple[int, int]:
    """The size of a part, and how many nearly every batch takes: one, or an even share each where that is too much."""
    expected = num_records * sampling_rate
    likely = min(num_records, expected + deviations * math.sqrt(expected * (1 - sampling_rate)))
    limit = min(at_most or LARGEST_FLOAT32_SUM, LARGEST_FLOAT32_SUM)
    parts = max(1, math.ceil(likely / limit))
    return min(limit, MULTIPLE * math.ceil(max(1, likely / parts) / MULTIPLE)), parts


def largest_part(written_out: int, expected: float) -> int | None:
    """What a part may have at most, where nobody says: a large model takes a batch in many small parts."""
    return max(SMALL_PARTS, math.ceil(expected / SMALL_PARTS)) if written_out > LARGE else None


class Feed(Protocol):
    """Hands out the parts of each step's batch, for one run or several."""

    def parts(self, step: int) -> int:
        """How many parts this step takes; steps are asked for in their order."""
        ...

    def next_part(self) -> None:
        """Make ready for the next part; never recorded."""
        ...

    def read(self) -> list[Part]:
        """The part that is ready, for each run; may be recorded."""
        ...


class ResidentFeed:
    """All records are on the device, and behind them a row of zeros; batches are rows of numbers, sampled far ahead."""

    def __init__(self, records: ResidentRecords, samplers: Sequence[PoissonSampler], size: int, step: int) -> None:
        self._num_records = len(records)
        self._x, self._y = records.padded
        device = self._x.device
        self._samplers, self._size, self._step = samplers, size, step
        self._rows = torch.zeros(ROWS_AHEAD, len(samplers), size, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._waiting: deque[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = deque()
        self._parts: deque[int] = deque()
        self._left = 0
        self._held = self._rows[0]

    def parts(self, step: int) -> int:
        """As many as the largest batch of this step takes."""
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

    def read(self) -> list[Part]:
        """Look the records up."""
        rows = self._rows.index_select(0, self._position)[0]
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
            parts = max(1, *(math.ceil(len(batch) / self._size) for batch in batches))
            rows = np.full((len(batches), parts * self._size), self._num_records)
            for own, batch in zip(rows, batches, strict=True):
                own[: len(batch)] = batch
            self._waiting.extend(rows.reshape(len(batches), parts, self._size).swapaxes(0, 1))
            self._parts.append(parts)
        self._step += ROWS_AHEAD


class StreamedFeed:
    """Batches come from elsewhere and are copied to a place that stays."""

    def __init__(self, batches: Iterator[Batch], empty: Batch, size: int, device: torch.device) -> None:
        self._batches, self._size = batches, size
        self._x, self._y = (v.new_zeros(size, *v.shape[1:], device=device) for v in empty)
        self._present = torch.zeros(size, dtype=torch.bool, device=device)
        self._waiting: deque[Batch] = deque()

    def parts(self, step: int) -> int:
        """Read the batch of this step."""
        x, y = next(self._batches)
        self._waiting.extend(zip(x.split(self._size), y.split(self._size), strict=True))
        return len(self._waiting)

    def next_part(self) -> None:
        """Copy, and clear what is left of the part before."""
        x, y = self._waiting.popleft()
        for place, values in ((self._x, x), (self._y, y)):
            place[: len(values)].copy_(values)
            place[len(values) :].zero_()
        self._present[: len(x)].fill_(True)
        self._present[len(x) :].fill_(False)

    def read(self) -> list[Part]:
        """What was copied."""
        return [(self._x, self._y, self._present)]
