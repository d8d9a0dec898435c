"""Lower bounds on epsilon from observations of an attack, each too high with at most a stated probability.

Two facts are used. An (epsilon, delta)-private mechanism limits every attacker's success, so that success bounds
epsilon from below. And one number describes a Gaussian mechanism, its noise in units of how far a record moves the
output, so that a bound on this number bounds epsilon of a whole run.

    noise_multiplier_bounds    from scores of releases with and without a canary
    epsilon_of_noise           of a run with that noise, by optimistic privacy loss distributions
    epsilon_by_counts          from how often a threshold on scores is right, for noise of any shape
    epsilon_of_guesses         from one run with many canaries (Steinke, Nasr and Jagielski 2023)
"""

import math
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld.pld_pmf import DensePLDPmf
from scipy.special import betaincinv, ndtr
from scipy.stats import binom, chi2, norm

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
"""In standard deviations: losses beyond are left out."""
LEAST_NOISE = 0.4
"""The least noise multiplier for each record of a person: with less, privacy loss distributions need too much memory,
and with more, epsilon is only smaller."""
NEGLIGIBLE = 1e-30
"""Probabilities below are left out, which makes epsilon only smaller."""
TOLERANCE = 1e-10
"""The precision of a search for epsilon, subtracted from its result."""


def noise_multiplier_bounds(inside: np.ndarray, outside: np.ndarray, confidence: float) -> tuple[float, float]:
    """Bounds on the noise multiplier of a Gaussian mechanism, from scores with and without the canary.

    The noise is the standard deviation of the scores (chi-squared), and the canary moves them by the difference of
    their means (normal). Each bound on each is wrong with a quarter of ``1 - confidence``.

    Guarantees:
        The true multiplier is outside with a probability of at most ``1 - confidence``.
    """
    wrong = (1 - confidence) / 4
    freedom = len(inside) + len(outside) - 2
    squares = ((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()
    lowest, highest = (math.sqrt(squares / chi2.ppf(share, freedom)) for share in (1 - wrong, wrong))
    shift = float(inside.mean() - outside.mean())
    reach = norm.isf(wrong) * highest * math.sqrt(1 / len(inside) + 1 / len(outside))
    low = lowest / (shift + reach) if shift + reach > 0 else math.inf
    return low, highest / (shift - reach) if shift > reach else math.inf


def spread_bounds(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """Bounds on the standard deviation of a Gaussian of mean zero; each is wrong with half of ``1 - confidence``."""
    wrong = (1 - confidence) / 2
    squares = float((values**2).sum())
    return math.sqrt(squares / chi2.isf(wrong, values.size)), math.sqrt(squares / chi2.ppf(wrong, values.size))


@lru_cache(maxsize=64)
def epsilon_of_noise(
    noise_levels: tuple[tuple[float, int], ...], sampling_rate: float, delta: float, records: int = 1
) -> float:
    """A lower bound on epsilon of a run whose noise multipliers, each with its number of steps, are at most these.

    All of the person's `records` move the sum the same way. Where all records are in every batch the result is exact.
    Elsewhere losses are rounded in the run's favour, on grids that get finer as long as this shows more.
    """
    if any(math.isinf(noise) for noise, _ in noise_levels):
        return 0.0
    if sampling_rate == 1:
        noise = 1 / math.sqrt(sum(steps / noise**2 for noise, steps in noise_levels)) / records
        return max(0.0, float(get_epsilon_gaussian(noise, delta, TOLERANCE)) - TOLERANCE)
    best = 0.0
    for interval in GRIDS:
        losses = [
            _losses(max(noise, LEAST_NOISE * records), sampling_rate, interval, records).self_compose(steps)
            for noise, steps in noise_levels
        ]
        epsilon = float(reduce(lambda first, second: first.compose(second), losses).get_epsilon_for_delta(delta))
        is_enough = epsilon < best * (1 + WORTHWHILE) or epsilon > MORE_THAN_ENOUGH
        best = max(best, epsilon)
        if is_enough:
            break
    return best


def _losses(noise: float, sampling_rate: float, interval: float, records: int) -> Any:
    """Privacy losses of one step when the person is removed, rounded down to the grid; losses far out are left out.

    The loss ``log sum_j b_j e^((2 j x - j^2) / (2 s^2))``, with x from ``sum_j b_j N(j, s^2)`` and b_j the probability
    that j of the person's records are in the batch, grows with x: above an x it is at least that of x.
    """
    weights = binom.pmf(np.arange(records + 1), records, sampling_rate)
    low, high = -FAR_OUT * noise, records + FAR_OUT * noise
    x = np.linspace(low, high, math.ceil((high - low) * records / noise**2 / interval) + 1)
    loss, below = np.full_like(x, -np.inf), np.zeros_like(x)
    for hits in np.flatnonzero(weights > NEGLIGIBLE):
        np.logaddexp(loss, math.log(weights[hits]) + (2 * hits * x - hits**2) / (2 * noise**2), out=loss)
        below += weights[hits] * ndtr((x - hits) / noise)
    places = np.floor(loss[:-1] / interval).astype(np.int64)
    lowest = int(places.min())
    probabilities = np.bincount(places - lowest, np.diff(below))
    return DensePLDPmf(interval, lowest, probabilities, 0.0, pessimistic_estimate=False)


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Bounds on a probability; each is wrong with at most ``1 - confidence``."""
    wrong = 1 - confidence
    low = betaincinv(successes, trials - successes + 1, wrong) if successes > 0 else 0.0
    high = 1 - betaincinv(trials - successes, successes + 1, wrong) if successes < trials else 1.0
    return float(low), float(high)


def epsilon_by_counts(inside: np.ndarray, outside: np.ndarray, delta: float, confidence: float) -> float:
    """A lower bound on epsilon from a threshold that one half of the scores chooses and the other half tries.

    P(above | in) <= e^epsilon P(above | out) + delta, and likewise for P(below) with in and out exchanged.
    """
    (choose_in, try_in), (choose_out, try_out) = (np.array_split(scores, 2) for scores in (inside, outside))
    thresholds = np.quantile(np.concatenate([choose_in, choose_out]), np.linspace(0.001, 0.999, 200))

    def bound(ins: np.ndarray, outs: np.ndarray, threshold: float, is_above: bool) -> float:
        first, second = (ins > threshold, outs > threshold) if is_above else (outs <= threshold, ins <= threshold)
        likely = clopper_pearson(int(first.sum()), len(first), (1 + confidence) / 2)[0]
        unlikely = clopper_pearson(int(second.sum()), len(second), (1 + confidence) / 2)[1]
        return math.log((likely - delta) / unlikely) if likely > delta else 0.0

    candidates = [(threshold, is_above) for threshold in thresholds for is_above in (True, False)]
    best = max(candidates, key=lambda candidate: (bound(choose_in, choose_out, *candidate), *candidate))
    return max(0.0, bound(try_in, try_out, *best))


def epsilon_of_guesses(right: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """A lower bound on epsilon from one run, in which `right` of the `guesses` about `canaries` are right.

    A coin decides whether a canary is in. Were the run (epsilon, delta)-private, so many right guesses would have at
    most the probability

        P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i        B: binomial(guesses, 1 / (1 + e^-epsilon))

    The largest epsilon at which that is below ``1 - confidence`` is refuted.
    """

    def is_refuted(epsilon: float) -> bool:
        return probability_of_guesses(right, guesses, canaries, epsilon, delta) <= 1 - confidence

    if right <= guesses / 2 or not is_refuted(0.0):
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def probability_of_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses in a run that is (epsilon, delta)-private."""
    share = 1 / (1 + math.exp(-epsilon))
    below = binom.pmf(np.arange(right - 1, -1, -1), guesses, share).cumsum() / np.arange(1, right + 1)
    return float(binom.sf(right - 1, guesses, share) + 2 * canaries * delta * below.max())
