"""From what an attack saw to a lower bound on epsilon that is wrong with at most a stated probability.

Two facts are used. A mechanism that is (epsilon, delta)-private confuses every attacker at least so much, so that an
attacker's success bounds epsilon from below. And a Gaussian mechanism is known up to one number, its noise in units of
how far a record moves the output, so that a bound on that number bounds epsilon of a whole run.

    noise_multiplier_bounds    of the scores of canaries that were in, and of those that were out
    epsilon_of_noise           of a run with that noise: by optimistic privacy loss distributions
    epsilon_by_counts          Clopper-Pearson bounds on how often a threshold is right: no shape is assumed
    epsilon_of_guesses         of one run with many canaries (Steinke, Nasr and Jagielski 2023)
"""

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

__all__ = [
    "clopper_pearson",
    "epsilon_by_counts",
    "epsilon_of_guesses",
    "epsilon_of_noise",
    "noise_multiplier_bounds",
    "probability_of_guesses",
    "spread_bounds",
]

LARGEST_EPSILON = 50.0
GRIDS, WORTHWHILE, MORE_THAN_ENOUGH = (1e-3, 1e-4, 1e-5), 0.02, 10.0
FAR_OUT = 10.0
"""Standard deviations."""
LEAST_NOISE = 0.4
"""For each record of a person. Below it privacy loss distributions need more memory than there is; with more noise,
epsilon is only smaller."""
NEGLIGIBLE = 1e-30
"""Weights that are left out, which makes epsilon only smaller."""
TABLE, NEWTON_STEPS = 20_001, 2


def noise_multiplier_bounds(inside: np.ndarray, outside: np.ndarray, confidence: float) -> tuple[float, float]:
    """Of a Gaussian mechanism, from scores of canaries that were in and of others that were not.

    The noise is their standard deviation (chi-squared), how far a canary moves them the difference of their means
    (normal). Each side of each is wrong with a quarter of ``1 - confidence``.

    Guarantees:
        The true multiplier is outside with a probability of at most ``1 - confidence``.
    """
    from scipy.stats import chi2, norm

    wrong = (1 - confidence) / 4
    freedom = len(inside) + len(outside) - 2
    squares = ((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()
    lowest, highest = (math.sqrt(squares / chi2.ppf(share, freedom)) for share in (1 - wrong, wrong))
    shift = float(inside.mean() - outside.mean())
    reach = norm.isf(wrong) * highest * math.sqrt(1 / len(inside) + 1 / len(outside))
    return lowest / (shift + reach) if shift + reach > 0 else math.inf, (
        highest / (shift - reach) if shift > reach else math.inf
    )


def spread_bounds(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """Of the standard deviation of a Gaussian of mean zero; each is wrong with half of ``1 - confidence``."""
    from scipy.stats import chi2

    wrong = (1 - confidence) / 2
    squares = float((values**2).sum())
    return math.sqrt(squares / chi2.isf(wrong, values.size)), math.sqrt(squares / chi2.ppf(wrong, values.size))


@lru_cache(maxsize=64)
def epsilon_of_noise(
    noise_levels: tuple[tuple[float, int], ...], sampling_rate: float, delta: float, records: int = 1
) -> float:
    """Of a run whose noise multipliers, over so many steps each, are at most these: never above the true epsilon.

    It is that of a person with so many records, which all move the sum the same way. Where all records are in every
    batch it is exact. Elsewhere losses are rounded in the run's favour on three grids, of which the finest that is
    affordable says most.
    """
    if any(math.isinf(noise) for noise, _ in noise_levels):
        return 0.0
    if sampling_rate == 1:
        return _of_one_gaussian(records * math.sqrt(sum(steps / noise**2 for noise, steps in noise_levels)), delta)
    best = 0.0
    for interval in GRIDS:
        losses = [
            _losses(max(noise, LEAST_NOISE * records), sampling_rate, interval, records).self_compose(steps)
            for noise, steps in noise_levels
        ]
        found = float(reduce(lambda first, second: first.compose(second), losses).get_epsilon_for_delta(delta))
        is_enough = found < best * (1 + WORTHWHILE) or found > MORE_THAN_ENOUGH
        best = max(best, found)
        if is_enough:
            break
    return best


def _losses(noise: float, sampling_rate: float, interval: float, records: int) -> Any:
    """Of one step that a person is removed from, rounded down to the grid; what lies far out is left out.

    ``log sum_j b_j e^((2 j x - j^2) / (2 s^2))`` with x from ``sum_j b_j N(j, s^2)``, where b_j is the probability that
    j of the person's records are in the batch.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy.special import ndtr
    from scipy.stats import binom

    hits = np.arange(records + 1)
    weights = binom.pmf(hits, records, sampling_rate)
    hits, weights = hits[weights > NEGLIGIBLE], weights[weights > NEGLIGIBLE]
    mixture = _Mixture(hits, np.log(weights) - hits**2 / (2 * noise**2))
    reach = np.array([-FAR_OUT * noise, records + FAR_OUT * noise]) / noise**2
    ends = mixture.logarithm(reach)
    grid = np.arange(math.floor(ends[0] / interval), math.ceil(ends[1] / interval) + 1)
    x = noise**2 * mixture.inverse(grid * interval, reach)
    below = sum(weight * ndtr((x - hit) / noise) for hit, weight in zip(hits, weights, strict=True))
    return DensePLDPmf(interval, int(grid[0]), np.diff(below), 0.0, pessimistic_estimate=False)


@dataclass(frozen=True)
class _Mixture:
    """``F(y) = log sum_j e^(offset_j + j y)``, convex and growing."""

    hits: np.ndarray
    offsets: np.ndarray

    def logarithm(self, y: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce([offset + hit * y for hit, offset in zip(self.hits, self.offsets, strict=True)])

    def _slope(self, y: np.ndarray, level: np.ndarray) -> np.ndarray:
        return np.sum(
            [hit * np.exp(offset + hit * y - level) for hit, offset in zip(self.hits, self.offsets, strict=True)],
            axis=0,
        )

    def inverse(self, levels: np.ndarray, reach: np.ndarray) -> np.ndarray:
        """Where F reaches each level, or a little above: Newton's method comes down to it from the right."""
        table = np.linspace(reach[0], reach[1], TABLE)
        known = self.logarithm(table)
        is_reached = levels > known[0]
        y = table[np.clip(np.searchsorted(known, levels), 0, TABLE - 1)]
        for _ in range(NEWTON_STEPS):
            found = self.logarithm(y)
            y = y - np.divide(found - levels, self._slope(y, found), where=is_reached & (found > levels), out=0 * y)
        return np.where(is_reached, y, -np.inf)


def _of_one_gaussian(shift: float, delta: float) -> float:
    """Of two Gaussians that are so many standard deviations apart: where delta is

    Phi(shift / 2 - epsilon / shift) - e^epsilon Phi(-shift / 2 - epsilon / shift)
    """
    from scipy.special import log_ndtr, ndtr

    def delta_of(epsilon: float) -> float:
        return float(ndtr(shift / 2 - epsilon / shift) - math.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift)))

    low, high = 0.0, shift * (shift + 40)  # where less than e^-800 is left
    if delta_of(0.0) <= delta:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return low


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Bounds on a probability; each is wrong with at most ``1 - confidence``."""
    from scipy.special import betaincinv

    wrong = 1 - confidence
    low = betaincinv(successes, trials - successes + 1, wrong) if successes > 0 else 0.0
    high = 1 - betaincinv(trials - successes, successes + 1, wrong) if successes < trials else 1.0
    return float(low), float(high)


def epsilon_by_counts(inside: np.ndarray, outside: np.ndarray, delta: float, confidence: float) -> float:
    """From a threshold that one half of the scores chooses and the other half tries, in either direction.

    P(above | in) <= e^epsilon P(above | out) + delta, and likewise for what is below and exchanged.
    """
    (choose_in, try_in), (choose_out, try_out) = (np.array_split(own, 2) for own in (inside, outside))
    candidates = np.quantile(np.concatenate([choose_in, choose_out]), np.linspace(0.001, 0.999, 200))

    def bound(ins: np.ndarray, outs: np.ndarray, threshold: float, is_above: bool) -> float:
        first, second = (ins > threshold, outs > threshold) if is_above else (outs <= threshold, ins <= threshold)
        likely = clopper_pearson(int(first.sum()), len(first), (1 + confidence) / 2)[0]
        unlikely = clopper_pearson(int(second.sum()), len(second), (1 + confidence) / 2)[1]
        return math.log((likely - delta) / unlikely) if likely > delta else 0.0

    tried = [(bound(choose_in, choose_out, own, above), own, above) for own in candidates for above in (True, False)]
    _, threshold, is_above = max(tried)
    return max(0.0, bound(try_in, try_out, threshold, is_above))


def epsilon_of_guesses(right: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """From one run: of `canaries`, each in or out by a coin, so many were guessed, and so many guesses were right.

    Were the run (epsilon, delta)-private, as many right guesses would have at most the probability

        P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i        B: binomial(guesses, 1 / (1 + e^-epsilon))

    The largest epsilon at which that is below ``1 - confidence`` is refuted.
    """
    if right <= guesses / 2:
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    if probability_of_guesses(right, guesses, canaries, low, delta) > 1 - confidence:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        is_refuted = probability_of_guesses(right, guesses, canaries, middle, delta) <= 1 - confidence
        low, high = (middle, high) if is_refuted else (low, middle)
    return low


def probability_of_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The most that so many right guesses can have in a run that is (epsilon, delta)-private."""
    from scipy.stats import binom

    share = 1 / (1 + math.exp(-epsilon))
    below = binom.pmf(np.arange(right - 1, -1, -1), guesses, share).cumsum() / np.arange(1, right + 1)
    return float(binom.sf(right - 1, guesses, share) + 2 * canaries * delta * below.max())
