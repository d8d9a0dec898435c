"""The least noise that keeps a budget.

>>> round(least_noise(Budget(epsilon=1.0, delta=1e-5, sampling_rate=256 / 60_000, steps=3515)), 3)
1.185
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpbnn._validate import fraction, positive, refuse
from dpbnn.privacy.accountants import Charge, account
from dpbnn.privacy.accountants.pld import coarse_epsilon

__all__ = ["Budget", "least_noise"]

_LARGEST_EPSILON = 1000.0
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e7
_TOLERANCE = 1e-5  # of epsilon, relative
_LEAST_RATIO = 1e-4


@dataclass(frozen=True)
class Budget:
    """What may be spent, and on which run."""

    epsilon: float
    delta: float
    sampling_rate: float
    steps: int
    records_per_person: int = 1
    adjacency: str = "add_or_remove"
    pure_epsilons: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        fraction("delta", self.delta)
        if self.epsilon > _LARGEST_EPSILON:
            refuse(
                "epsilon",
                f"at most {_LARGEST_EPSILON:.0f} (more protects nobody: use PrivacyPlan.without_privacy)",
                self.epsilon,
            )

    def charge(self, noise: float) -> Charge:
        """The run with this noise multiplier."""
        levels = ((noise, self.steps),)
        return Charge(
            self.sampling_rate, levels, self.delta, self.records_per_person, self.adjacency, self.pure_epsilons
        )


def least_noise(budget: Budget) -> float:
    """The smallest noise multiplier whose tightest epsilon is within the budget, and within 1e-5 of it.

    RDP, which is quick, gives a noise that is enough; PLD on a coarse grid nearly always a smaller one; the
    tightest epsilon, which costs most, is left to find the last thousandths.
    """

    def spent(noise: float) -> float:
        return account(budget.charge(noise)).epsilon

    def spent_by_rdp(noise: float) -> float:
        return account(budget.charge(noise), "rdp").epsilon

    def spent_roughly(noise: float) -> float:
        return min(coarse_epsilon(budget.charge(noise)), spent_by_rdp(noise))

    enough = _enough(spent_by_rdp, budget.epsilon) or _enough(spent, budget.epsilon)
    if enough is None:
        floor = spent(_MOST_NOISE)  # what goes before the run, or what float64 cannot tell from zero
        refuse("epsilon", f"above {floor:.2g}, below which no noise brings it at this delta", budget.epsilon)
    roughly = _search(spent_roughly, budget.epsilon, enough, first_factor=0.9, tolerance=1e-3)
    start = roughly if spent(roughly) <= budget.epsilon else enough
    return _search(spent, budget.epsilon, start, first_factor=0.999, tolerance=_TOLERANCE)


def _enough(spent: Callable[[float], float], target: float) -> float | None:
    """A noise that is enough and less than a quarter above the least such, or None if there is none."""
    noise = 1.0
    while spent(noise) > target:
        noise *= 2
        if noise > _MOST_NOISE:
            return None
    while noise > _LEAST_NOISE and spent(noise / 1.25) <= target:
        noise /= 1.25
    return noise


def _search(
    spent: Callable[[float], float], target: float, enough: float, first_factor: float, tolerance: float
) -> float:
    """The least noise, by regula falsi on log epsilon, which is nearly linear in log noise."""

    def excess(log_noise: float) -> float:
        """log(epsilon / target), aimed a little below zero: the search ends on the side that is enough."""
        ratio = spent(math.exp(log_noise)) / target
        return math.log(min(max(ratio, _LEAST_RATIO), 1 / _LEAST_RATIO)) + tolerance / 2

    high, below = math.log(enough), excess(math.log(enough))
    stride = math.log(first_factor)
    low, above = high + stride, excess(high + stride)
    while above <= tolerance / 2:
        high, below = low, above
        if high < math.log(_LEAST_NOISE):
            return math.exp(high)
        stride *= 2
        low, above = high + stride, excess(high + stride)
    low_counts = high_counts = 1.0
    while below < -tolerance / 2 and high - low > tolerance / 10:
        share = above * low_counts / (above * low_counts - below * high_counts)
        middle = low + min(0.999, max(0.001, share)) * (high - low)
        value = excess(middle)
        if value > tolerance / 2:  # the Illinois rule: an end that stays twice counts half
            low, above, low_counts, high_counts = middle, value, 1.0, high_counts / 2
        else:
            high, below, low_counts, high_counts = middle, value, low_counts / 2, 1.0
    return math.exp(high)
