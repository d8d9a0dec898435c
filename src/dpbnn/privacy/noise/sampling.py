"""Poisson sampling: in every step each record joins the batch independently with probability q, as accounted.

    >>> from dpbnn.privacy.noise.randomness import Randomness
    >>> sampler = PoissonSampler(num_records=1000, sampling_rate=0.01, randomness=Randomness.from_operating_system())
    >>> bool(0 <= len(sampler.batch(step=0)) <= 1000)
    True

The rate comes from the plan (`batch_size / dataset_size`), never from the data: `num_records` may differ from
`dataset_size`. Batches vary in size and can be empty; an empty batch is a step like any other.

Many steps are drawn at a time: the cells of a table with a row for each step and a column for each record are chosen
independently with probability q. The gap between two chosen cells is geometric.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpbnn.privacy.noise.randomness import Randomness

__all__ = ["PoissonSampler", "largest_batch"]

MOST_STEPS, MOST_CELLS = 64, 2**22
"""The most that is drawn at a time: enough to be fast, and little enough for memory."""

Rows = npt.NDArray[np.int64]


@dataclass
class PoissonSampler:
    """The records of each step's batch.

    Guarantees:
        Every record joins every batch independently with the sampling rate.
        The batch of a step depends on nothing but the key and the step.
    """

    num_records: int
    sampling_rate: float
    randomness: Randomness
    _drawn: dict[int, tuple[Rows, Rows]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def batch(self, step: int) -> Rows:
        """The sorted indices of one step's batch."""
        return self.in_a_row(step, step + 1)[0]

    def in_a_row(self, first_step: int, end: int) -> tuple[Rows, Rows]:
        """The batches of the steps from `first_step` up to, not including, `end`, end to end; and the size of each."""
        rows, sizes, step = [], [], first_step
        while step < end:
            table, row = divmod(step, self._steps_at_a_time)
            cells, starts = self._table(table)
            last = min(row + end - step, self._steps_at_a_time)
            rows.append(cells[starts[row] : starts[last]])
            sizes.append(np.diff(starts[row : last + 1]))
            step += last - row
        return np.concatenate(rows), np.concatenate(sizes)

    @property
    def _steps_at_a_time(self) -> int:
        return max(1, min(MOST_STEPS, MOST_CELLS // max(1, self.num_records)))

    def _table(self, table: int) -> tuple[Rows, Rows]:
        drawn = self._drawn.get(table)
        if drawn is None:
            drawn = self._draw(table)
            self._drawn = {table: drawn}  # another thread may ask for another table at the same time
        return drawn

    def _draw(self, table: int) -> tuple[Rows, Rows]:
        """The indices of all steps of a table, one step after another, and where each step starts."""
        steps, records = self._steps_at_a_time, self.num_records
        generator = self.randomness.generator("sampling", table)
        cells = _chosen(steps * records, self.sampling_rate, generator)
        starts = np.searchsorted(cells, records * np.arange(steps + 1))
        return cells % max(1, records), starts


def largest_batch(num_records: int, sampling_rate: float) -> int:
    """No batch has more records than this, except with probability 1e-30."""
    expected = num_records * sampling_rate
    return math.ceil(min(num_records, expected + 12 * math.sqrt(expected * (1 - sampling_rate)) + 72))


def _chosen(cells: int, rate: float, generator: np.random.Generator) -> Rows:
    """The cells that are chosen, each independently, in ascending order.

    Gaps are geometric: an exponential number in units of its mean, rounded up, is larger than k with the probability
    ``(1 - rate)^k`` if the mean is ``-1 / log(1 - rate)``.
    """
    length = -1 / math.log1p(-rate) if rate < 1 else 0.0
    expected = cells * rate
    at_a_time = math.ceil(expected + 6 * math.sqrt(expected) + 8)  # once is nearly always enough
    chosen = np.array([-1])
    while chosen[-1] < cells:
        gaps = np.ceil(generator.standard_exponential(at_a_time) * length)
        further = np.cumsum(np.clip(gaps, 1, cells + 1).astype(np.int64))  # an exponential can be 0
        chosen = np.append(chosen, chosen[-1] + further)
    return chosen[1 : np.searchsorted(chosen, cells)]
