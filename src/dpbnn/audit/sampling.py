"""Whether batches are the Poisson samples that are accounted for: seen from where they are read.

Records are made up and hold their own number, and what is counted is the batches as training gets them. That there are
fewer of them than the plan declares must not matter: the rate is the plan's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbnn.audit.checks import Check
from dpbnn.likelihoods import HomoscedasticGaussian
from dpbnn.methods import SGD
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training import prepared

__all__ = ["SamplingAudit", "audit_sampling"]

RECORDS, DECLARED = 400, 500


@dataclass(frozen=True)
class SamplingAudit:
    """What was seen of the batches of a run.

    Args:
        sampling_rate: by the plan.
        batches: that were looked at.
        mean_rate: how often a record was in one.
        checks: what must be so of Poisson samples.
    """

    sampling_rate: float
    batches: int
    mean_rate: float
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against Poisson sampling at the plan's rate."""
        return all(check.holds for check in self.checks)


def audit_sampling(sampling_rate: float, batches: int = 2000) -> SamplingAudit:
    """Count who is in the batches of a run at about this rate.

    Guarantees:
        on code that is right, each check fails at most once in ``1 / ALARM``
    """
    size = min(DECLARED, max(1, round(sampling_rate * DECLARED)))
    seen = [_batches(RECORDS, DECLARED, size, batches), _batches(2, 10, 3, batches)]
    inside = _table(seen[0], RECORDS, batches)
    checks = [
        Check("every step has a batch, empty or not", float(all(len(own) == batches for own in seen))),
        Check("nobody is in a batch twice", float(all(len(set(own)) == len(own) for own in seen[0]))),
        *_counts(inside, size / DECLARED),
        _empty(sum(len(own) == 0 for own in seen[1]), len(seen[1]), (1 - 3 / 10) ** 2),
    ]
    return SamplingAudit(size / DECLARED, batches, float(inside.mean()), tuple(checks))


def _batches(records: int, declared: int, size: int, steps: int) -> list[list[int]]:
    """Of every step, the numbers that its records hold."""
    model = nn.Linear(1, 1)
    level: Any = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
    plan = PrivacyPlan(dataset_size=declared, batch_size=size, steps=steps, **level)
    numbers = torch.arange(records, dtype=torch.float32)[:, None]
    work = prepared(model, numbers, numbers, SGD(1.0), plan, HomoscedasticGaussian(1.0)).work
    return [x[:, 0].long().tolist() for x, _ in work.records.batches(work.sampler, 0, steps, 0)]


def _table(batches: list[list[int]], records: int, steps: int) -> np.ndarray:
    """``[steps, records]``: how often each record was in each batch."""
    table = np.zeros((steps, records))
    for step, batch in enumerate(batches[:steps]):
        np.add.at(table[step], batch, 1)
    return table


def _counts(inside: np.ndarray, rate: float) -> Iterator[Check]:
    from scipy.stats import binom, norm

    steps, records = inside.shape
    spread = rate * (1 - rate)
    total = int(inside.sum())
    yield Check(
        "a record is in a batch with the plan's probability",
        float(2 * min(binom.cdf(total, inside.size, rate), binom.sf(total - 1, inside.size, rate))),
    )

    def as_binomial(name: str, counts: np.ndarray, trials: int) -> Check:
        """Squared distances from the mean, of which there are many, against what they are for a binomial."""
        squares = (counts - trials * rate) ** 2 / (trials * spread) if spread else np.ones(len(counts))
        kurtosis = (1 - 6 * spread) / (trials * spread) if spread else 0.0
        return Check(
            name, float(2 * norm.sf(abs(squares.sum() - len(counts)) / math.sqrt(len(counts) * (2 + kurtosis))))
        )

    yield as_binomial("batches vary in size as sums of independent records do", inside.sum(axis=1), records)
    yield as_binomial("records are in as many batches as by independent coins", inside.sum(axis=0), steps)
    if spread:
        pairs = ((inside[:-1] - rate) * (inside[1:] - rate)).sum() / (spread * math.sqrt(inside[1:].size))
        yield Check("one step's batch says nothing about the next one's", float(2 * norm.sf(abs(pairs))))


def _empty(number: int, batches: int, chance: float) -> Check:
    from scipy.stats import binomtest

    return Check("batches are empty as often as chance has it", float(binomtest(number, batches, chance).pvalue))
