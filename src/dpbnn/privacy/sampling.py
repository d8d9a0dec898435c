"""Poisson sampling: in every step each record joins the batch independently with probability q, as accounted.

    >>> from dpbnn.privacy.randomness import Randomness
    >>> sampler = PoissonSampler(num_records=1000, sampling_rate=0.01, randomness=Randomness.from_operating_system())
    >>> bool(0 <= len(sampler.batch(step=0)) <= 1000)
    True

The rate comes from the plan (`batch_size / dataset_size`), never from the data: `num_records` may differ from
`dataset_size`. Batches vary in size and can be empty; an empty batch is a step like any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbnn.privacy.randomness import Randomness

__all__ = ["PoissonSampler"]


@dataclass(frozen=True)
class PoissonSampler:
    """The records of each step's batch.

    Guarantees:
        Every record joins every batch independently with the sampling rate.
        The batch of a step depends on nothing but the key and the step.
    """

    num_records: int
    sampling_rate: float
    randomness: Randomness

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """The sorted indices of one step's batch: a binomial count, then that many distinct records."""
        generator = self.randomness.generator("sampling", step)
        count = generator.binomial(self.num_records, self.sampling_rate)
        return np.sort(generator.choice(self.num_records, size=count, replace=False, shuffle=False))

    def batches(self, first_step: int, end: int) -> Iterator[list[int]]:
        """The batches of the steps from `first_step` up to, not including, `end`."""
        for step in range(first_step, end):
            yield self.batch(step).tolist()
