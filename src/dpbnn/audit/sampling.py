"""Whether batches are the Poisson samples that the accountant assumes, judged by what steps release.

The gradient of record i is 1 in place i and 0 elsewhere. With hardly any noise, a release then shows how often each
record is in the batch, through all that a step does. There are more records than the plan declares, which must not
matter: the rate is the plan's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.fft import irfft, rfft
from scipy.stats import binom, binomtest, pearson3

from dpbnn.audit.checks import Check, Checked
from dpbnn.audit.probe import flat, linear_probe
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["SamplingAudit", "audit_sampling", "checks_of_counts"]

RECORDS, DECLARED = 500, 400
HARDLY_ANY = 1e-3


@dataclass(frozen=True)
class SamplingAudit(Checked):
    """Who was in the batches of a run.

    Args:
        sampling_rate: the plan's.
        batches: how many were counted.
        mean_rate: the share of batches that a record was in, on average.
        checks: what must hold for Poisson samples.
    """

    sampling_rate: float
    batches: int
    mean_rate: float
    checks: tuple[Check, ...]


def audit_sampling(sampling_rate: float, batches: int = 2000) -> SamplingAudit:
    """Count who is in the batches of a run at about this rate."""
    size = min(DECLARED, max(1, round(sampling_rate * DECLARED)))
    inside, few = _counted(RECORDS, DECLARED, size, batches), _counted(2, 10, 3, batches // 4)
    empty = int((few.sum(axis=1) == 0).sum()), len(few)
    checks = [
        Check("every step has a batch, empty or not", float((len(inside), len(few)) == (batches, batches // 4))),
        Check("nobody is in a batch twice", float(np.isin(inside, (0, 1)).all())),
        *checks_of_counts(inside, size / DECLARED),
        Check("batches are empty as often as chance has it", float(binomtest(*empty, (1 - 3 / 10) ** 2).pvalue)),
    ]
    return SamplingAudit(size / DECLARED, batches, float(inside.mean()), tuple(checks))


def _counted(records: int, declared: int, size: int, steps: int) -> np.ndarray:
    """``[steps, records]``: how often each record was in the batch of each step; steps without a batch are left out."""
    plan = PrivacyPlan(declared, size, steps, clip_norm=1.0, noise_multiplier=HARDLY_ANY, delta=1e-5)
    probe, counts = linear_probe(torch.eye(records), -torch.ones(records, 1), plan), []
    for step in range(steps):
        try:
            counts.append(flat(probe.released(step).gradients).numpy().round())
        except StopIteration:
            break
    return np.array(counts).reshape(-1, records)


def checks_of_counts(inside: np.ndarray, rate: float) -> Iterator[Check]:
    """What must hold for ``[steps, records]``, how often each record was in the batch of each step."""
    steps, records = inside.shape
    spread = rate * (1 - rate)
    total = int(inside.sum())
    yield Check(
        "a record is in a batch with the plan's probability",
        float(2 * min(binom.cdf(total, inside.size, rate), binom.sf(total - 1, inside.size, rate))),
    )

    def as_binomial(name: str, counts: np.ndarray, trials: int) -> Check:
        """Compare the sum of many squared distances from the mean with that of a binomial."""
        squares = (counts - trials * rate) ** 2 / (trials * spread) if spread else np.ones(len(counts))
        variance = len(counts) * (2 + ((1 - 6 * spread) / (trials * spread) if spread else 0.0))
        away = (squares.sum() - len(counts)) / math.sqrt(variance)
        return Check(name, _tails(away, 2 * math.sqrt(variance) / len(counts)))

    yield as_binomial("batches vary in size as sums of independent records do", inside.sum(axis=1), records)
    yield as_binomial("records are in as many batches as by independent coins", inside.sum(axis=0), steps)
    if spread:
        yield _between_steps((inside - rate) / math.sqrt(spread), (1 - 2 * rate) ** 2 / spread)


def _between_steps(standardized: np.ndarray, skewness: float) -> Check:
    """How alike batches are that lie a number of steps apart, summed over all pairs, for each number."""
    steps, records = standardized.shape
    apart = np.arange(1, steps // 2 + 1)
    spectrum = np.abs(rfft(standardized, 2 * steps, axis=0)) ** 2
    products = irfft(spectrum.sum(axis=1), 2 * steps)[apart]
    number = np.sqrt(records * (steps - apart))
    chance = _tails(products / number, skewness / number)
    return Check("one step's batch says nothing about any other's", min(1.0, len(apart) * chance))


def _tails(away: float | np.ndarray, skewness: float | np.ndarray) -> float:
    """The two-sided p-value of the least likely of some sums of skewed terms.

    By a Gamma distribution: a normal one has tails that are too light.
    """
    sides = pearson3.sf(away, skewness), pearson3.cdf(away, skewness)
    return float(min(1.0, 2 * np.min(sides)))
