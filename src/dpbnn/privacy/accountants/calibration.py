"""The least noise that keeps a budget.

>>> charge = Charge(sampling_rate=256 / 60_000, noise_levels=((1.0, 3515),), delta=1e-5)
>>> round(least_noise(charge, epsilon=1.0), 3)
1.185
"""

import math
from collections.abc import Callable
from dataclasses import replace

from dpbnn._validate import positive, refuse
from dpbnn.privacy.accountants.charge import Charge
from dpbnn.privacy.accountants.registry import account, quick_epsilon

__all__ = ["least_noise"]

_LARGEST_EPSILON = 1000.0
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e7
_TOLERANCE = 1e-5  # of epsilon, relative
_LEAST_RATIO = 1e-4


def least_noise(charge: Charge, epsilon: float) -> float:
    """The smallest constant noise multiplier at which the tightest epsilon is within `epsilon`, and within 1e-5 of it.

    The noise of the charge itself does not matter. The quick bounds give a noise that is enough; PLD on a coarse grid
    nearly always a smaller one; the tightest epsilon, which costs most, is left to find the last thousandths.
    """
    if positive("epsilon", epsilon) > _LARGEST_EPSILON:
        expected = f"at most {_LARGEST_EPSILON:.0f} (more protects nobody: use PrivacyPlan.without_privacy)"
        refuse("epsilon", expected, epsilon)

    from dpbnn.privacy.accountants.pld import coarse_epsilon  # which loads the accounting libraries

    def at_noise(epsilon_of: Callable[[Charge], float]) -> Callable[[float], float]:
        return lambda noise: epsilon_of(replace(charge, noise_levels=((noise, charge.steps),)))

    spent_quickly, spent_coarsely = at_noise(quick_epsilon), at_noise(coarse_epsilon)
    spent = at_noise(lambda charge: account(charge).epsilon)
    enough = _enough(spent_quickly, epsilon)
    if enough is None:
        floor = spent(_MOST_NOISE)  # of purchases, or of what float64 cannot tell from zero
        if floor > epsilon:
            refuse("epsilon", f"above {floor:.2g}, as no noise level reaches less at this delta", epsilon)
        enough = _enough(spent, epsilon) or _MOST_NOISE
    rough = min(spent_coarsely, spent_quickly, key=lambda spend: spend(enough))
    roughly = _search(rough, epsilon, enough, first_factor=0.9, tolerance=1e-3)
    start = roughly if spent(roughly) <= epsilon else enough
    return _search(spent, epsilon, start, first_factor=0.999, tolerance=_TOLERANCE)


def _enough(spent: Callable[[float], float], target: float) -> float | None:
    """A noise that is enough and less than a quarter above the least one; None if no noise is enough."""
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
