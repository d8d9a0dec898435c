"""The worst two outputs that neighbouring data sets can give in one step, and their privacy loss on a grid.

One step's output, seen along the direction in which a person moves it, is one of two mixtures of Gaussians.
With b_j = Binomial(k, q)(j) for j of the person's k records in the batch, and lengths in units of the clip norm:

    remove:   upper = sum_j b_j N(j, s^2)    lower = N(0, s^2)
    add:      upper = N(0, s^2)              lower = sum_j b_j N(-j, s^2)
    replace (k = 1):  upper = (1 - q) N(0, s^2) + q N(1, s^2),   lower = (1 - q) N(0, s^2) + q N(-1, s^2)

Each pair dominates every pair of clipped sums. For removing and adding: Zhu, Dong and Wang (2022), and for several
records Choquette-Choo, Ganesh, Steinke and Thakurta (2024), Corollary 4.7: a Gaussian against a mixture of Gaussians
is easiest to tell apart when all shifts point one way and are as long as they can be. For replacing x by x' and
e^eps >= 1 the common part (1 - q) N(0) cancels down to N(x) against a mixture of N(0) and N(x'), that is a Gaussian
against shifts of norm at most 1 and 2, to which the corollary applies; e^eps < 1 follows by exchanging the two.

The loss log(upper / lower) grows with x, so that

    delta(eps) = upper(x > c) - e^eps lower(x > c),      loss(c) = eps.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri
from scipy.stats import binom

__all__ = ["DominatingPair", "Losses", "PureLoss", "binomial_hits", "pairs_for_step"]

_TAIL = math.exp(-50)  # mass of the upper mixture beyond the grid, charged as infinite loss
# The error of delta is quadratic in that of the threshold, so that these leave it far below float64's.
_CELLS_PER_SCALE, _LARGEST_TABLE = 32, 20_000
_CHORDS, _SETTLED = 6, 1e-11
_HALVINGS = 40
_CHERNOFF_ORDERS = 20  # as dp-accounting bounds the support of a composition
_FLOAT64_ROUNDING = 1e-16
_LOG_TRUNCATION = math.log(2 / 1e-15)

Mixture = tuple[tuple[float, float], ...]
"""Pairs of weight and mean, the mean in units of the noise."""


class Losses(ABC):
    """The privacy loss of a release whose hockey-stick divergences are known."""

    @property
    def components(self) -> int:
        """What one evaluation of the loss costs, in Gaussian densities."""
        return 2

    @abstractmethod
    def loss_range(self) -> tuple[float, float]:
        """The least and the largest loss."""

    @abstractmethod
    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """The hockey-stick divergence at each epsilon."""

    @abstractmethod
    def composed_points(self, interval: float, steps: int) -> float:
        """About how many grid points dp-accounting keeps after `steps` compositions."""

    def evaluations(self, interval: float) -> float:
        """The cost of the loss on a grid."""
        low, high = self.loss_range()
        return self.components * ((high - low) / interval + 2)

    def grid(self, interval: float) -> tuple[int, int]:
        """The first and last multiple of `interval` on which the loss is put."""
        low, high = self.loss_range()
        return math.floor(low / interval), math.ceil(high / interval)

    def loss_distribution(self, interval: float) -> DensePLDPmf:
        """The distribution of the loss on multiples of `interval`, rounded so that no epsilon is understated.

        Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), "Connect the dots", as in dp-accounting.
        """
        first, last = self.grid(interval)
        deltas = self.delta(np.arange(first, last + 1) * interval)
        return create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas).to_dense_pmf()

    def mass_by_rounding(self, interval: float) -> float:
        """About how much mass rounding adds to the distribution on a fine grid: valid, but to be kept small.

        Each mass is a second difference of deltas over `interval`, and a negative one is lifted to zero.
        """
        first, last = self.grid(interval)
        return _FLOAT64_ROUNDING / interval * (last - first)


@dataclass(frozen=True)
class PureLoss(Losses):
    """A release that is private with `epsilon` and no delta; nothing else is known of it.

    No such release tells neighbours apart better than randomized response, whose loss is +-epsilon.
    """

    epsilon: float

    def loss_range(self) -> tuple[float, float]:
        """The two losses of randomized response."""
        return -self.epsilon, self.epsilon

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """That of randomized response."""
        within = -np.expm1(epsilons - self.epsilon) / (1 + np.exp(-self.epsilon))
        return np.clip(np.maximum(within, -np.expm1(epsilons)), 0, 1)

    def composed_points(self, interval: float, steps: int) -> float:
        """All of them: without tails nothing is cut off."""
        return steps * (2 * self.epsilon / interval + 2)


@dataclass(frozen=True)
class DominatingPair(Losses):
    """Two mixtures of unit Gaussians; `left_out` is the weight of the upper one's negligible components."""

    upper: Mixture
    lower: Mixture
    left_out: float = 0.0

    @property
    def components(self) -> int:
        """The number of Gaussians."""
        return len(self.upper) + len(self.lower)

    def span(self) -> tuple[float, float]:
        """The range of x that holds all but a negligible mass of the upper mixture."""
        reach = [(mean, float(ndtri(min(0.5, _TAIL / weight)))) for weight, mean in self.upper]
        return min(mean + tail for mean, tail in reach), max(mean - tail for mean, tail in reach)

    def loss(self, x: np.ndarray) -> np.ndarray:
        """The privacy loss log(upper(x) / lower(x)), a non-decreasing function."""
        return _log_ratio_to_unit(self.upper, x) - _log_ratio_to_unit(self.lower, x)

    def loss_range(self) -> tuple[float, float]:
        """The losses at both ends of the span."""
        low, high = self.loss(np.array(self.span()))
        return float(low), float(high)

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """The upper minus e^epsilon times the lower mass beyond the threshold."""
        threshold = self._threshold(epsilons)
        above = sum(weight * ndtr(mean - threshold) for weight, mean in self.upper)
        below = sum(np.exp(epsilons + math.log(w) + log_ndtr(mean - threshold)) for w, mean in self.lower)
        deltas = np.clip(above - below + self.left_out, 0, 1)
        return np.maximum.accumulate(deltas[::-1])[::-1]  # rounding must not make it rise with epsilon

    def _threshold(self, epsilons: np.ndarray) -> np.ndarray:
        """The x at which the loss reaches each epsilon: by chords, and by halving where they do not settle."""
        steepest = max(abs(mean) for _, mean in self.upper + self.lower)
        low, high = self.span()
        size = min(_LARGEST_TABLE, (high - low) * _CELLS_PER_SCALE * max(1.0, steepest))
        table = np.linspace(low, high, int(size) + 2)
        losses = self.loss(table)
        cell = np.clip(np.searchsorted(losses, epsilons) - 1, 0, len(table) - 2)
        start, end = table[cell], table[cell + 1]
        rise = losses[cell + 1] - losses[cell]
        slope = np.divide(end - start, rise, out=np.zeros_like(rise), where=rise > 0)
        x, missing = start, epsilons - losses[cell]
        for _ in range(_CHORDS):
            x = np.clip(x + missing * slope, start, end)
            missing = epsilons - self.loss(x)
        unsettled = np.abs(missing) > _SETTLED * (1 + np.abs(epsilons))
        targets, start, end = epsilons[unsettled], start[unsettled], end[unsettled]
        for _ in range(_HALVINGS if len(targets) else 0):
            middle = (start + end) / 2
            is_reached = self.loss(middle) >= targets
            start, end = np.where(is_reached, start, middle), np.where(is_reached, middle, end)
        x[unsettled] = end
        return x

    def composed_points(self, interval: float, steps: int) -> float:
        """The range between dp-accounting's Chernoff bounds of the tails, in grid points.

        upper end = min_l [ T log E e^{l loss} + log(2/tau) ] / l over the orders l that dp-accounting tries,
        and the same with -l for the lower end. The grid adds to log E e^{l loss}: interval^2 / 4 to the variance
        of a step, and the mass that rounding makes.
        """
        orders, lower_moments, upper_moments = _chernoff_moments(self)
        low, high = self.loss_range()
        rounding = (orders * interval) ** 2 / 8 + self.mass_by_rounding(interval)
        below = ((steps * (lower_moments + rounding) + _LOG_TRUNCATION) / orders).min()
        above = ((steps * (upper_moments + rounding) + _LOG_TRUNCATION) / orders).min()
        kept = min(below, steps * max(-low, interval)) + min(above, steps * max(high, interval))
        return max(kept, high - low) / interval


@lru_cache(maxsize=256)
def _chernoff_moments(pair: DominatingPair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The orders l, and log E e^{-l loss} and log E e^{l loss} under the upper mixture."""
    x = np.linspace(*pair.span(), 2001)
    weights = np.diff(sum(weight * ndtr(x - mean) for weight, mean in pair.upper))
    losses = pair.loss((x[1:] + x[:-1]) / 2)
    low, high = pair.loss_range()
    orders = np.arange(1, _CHERNOFF_ORDERS + 1) / max(high - low, 1e-300)
    moments = [logsumexp(np.outer(sign * orders, losses), b=weights, axis=1) for sign in (-1, 1)]
    return orders, moments[0], moments[1]


def _log_ratio_to_unit(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    """log( sum_i w_i N(x; m_i, 1) / N(x; 0, 1) ) = logsumexp_i( log w_i + m_i x - m_i^2 / 2 )."""
    return reduce(np.logaddexp, (math.log(weight) + mean * x - mean * mean / 2 for weight, mean in mixture))


def pairs_for_step(sampling_rate: float, noise: float, records: int, adjacency: str) -> list[DominatingPair]:
    """The pairs of one step; epsilon is the largest over them. Replacing needs one record per person."""
    hits, weights, left_out = binomial_hits(records, sampling_rate)
    moved = tuple((float(weight), float(hit) / noise) for hit, weight in zip(hits, weights, strict=True))
    moved_back = tuple((weight, -mean) for weight, mean in moved)
    if adjacency == "replace_one":
        return [DominatingPair(moved, moved_back)]
    still: Mixture = ((1.0, 0.0),)
    return [DominatingPair(moved, still, left_out), DominatingPair(still, moved_back)]


def binomial_hits(records: int, rate: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The numbers of a person's records that a batch can hold, their probabilities, and the probability left out."""
    first = max(0, int(binom.ppf(_TAIL, records, rate)) - 1)
    last = min(records, int(binom.isf(_TAIL, records, rate)) + 1)
    hits = np.arange(first, last + 1)
    weights = binom.pmf(hits, records, rate)
    outside = float(binom.cdf(first - 1, records, rate) + binom.sf(last, records, rate))
    return hits[weights > 0], weights[weights > 0], outside
