"""Bounds of columns that nobody knows beforehand: bought from the private records, by private quantiles.

The exponential mechanism (OpenDP's noisy max of quantile scores) chooses each quantile among public candidates on a
geometric grid; it is private without a delta. The bounds of a column lie one width beyond its quartiles, and values
outside are clipped to them:

    low = q25 - w,    high = q75 + w,    w = q75 - q25  (or max(1, |q|) where both are q)

With too few rows for the quartiles of all columns, one bound is bought for all of them together, twice the median of
the largest magnitude in a row, and another for the target. With too few rows for that, the call is refused. Public
numbers alone decide between the three.

References: McSherry and Talwar 2007 (the mechanism), Smith 2011 (quantiles by it).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.errors import DpbnnError
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.purchases import Permit
from dpbnn.privacy.queries.selection import opendp, within

__all__ = ["Bounds", "BoundsPurchase", "bounds_purchase", "pure_epsilon_within", "quantile"]

SMALLEST, LARGEST, RATIO = 1e-6, 1e9, 1.02
"""Candidates: 0 and +-SMALLEST * RATIO^k up to LARGEST."""
FOR_ALL_COLUMNS = 8.0
"""The least number of rows below a quartile, in units of its noise, that brings quartiles near the true ones."""
FOR_ONE_BOUND = 5.0
"""The least product of rows and all of epsilon with which one bound for everything is not mostly chance."""
QUARTILES = {"lower": 0.25, "upper": 0.75}


@dataclass
class Bounds:
    """The lowest and the highest value of each column; beyond them values are clipped."""

    low: np.ndarray
    high: np.ndarray

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape or self.low.ndim != 1:
            _validate.refuse("bounds", "two numbers for each column", (self.low.shape, self.high.shape))
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all() and (self.low < self.high).all()):
            raise DpbnnError("bounds must be finite with each low below its high; give public ones that are.")

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """From -1 at the lowest to 1 at the highest; values outside are clipped, and NaN is put in the middle."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        with np.errstate(invalid="ignore", over="ignore"):
            return np.clip(np.nan_to_num((values - middle) / half, nan=0.0), -1.0, 1.0)


@dataclass(frozen=True)
class BoundsPurchase:
    """How bounds of columns are bought: decided by public numbers, before any record is seen.

    The bounds are those of each column, or one for all columns together; with `has_target` the last column is the
    target, which has a bound to itself. `columns` are names such as "column 'age'".
    """

    columns: tuple[str, ...]
    has_target: bool
    is_for_each_column: bool
    epsilon: float

    @property
    def purchases(self) -> dict[str, float]:
        """Each purpose and its epsilon for one record, as in a plan's `pure_epsilons`."""
        if self.is_for_each_column:
            return {f"{side} quartile of {name}": self.epsilon for name in self.columns for side in QUARTILES}
        return {f"largest magnitude of {part}": self.epsilon for part in self._parts}

    def bounds_of(self, values: np.ndarray, ledger: Ledger) -> Bounds:
        """The bounds of a table ``[rows, columns]``; NaN is a missing value, and left out."""
        finite = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=np.nan, posinf=LARGEST, neginf=-LARGEST)

        def bought(purpose: str, values: np.ndarray, share: float, candidates: Sequence[float]) -> float:
            return ledger.buy(purpose, lambda permit: quantile(values, share, permit, candidates))

        magnitudes = [SMALLEST * RATIO**k for k in range(math.ceil(math.log(LARGEST / SMALLEST) / math.log(RATIO)) + 1)]
        if not self.is_for_each_column:
            reach = np.zeros(len(self.columns))
            for part, columns in self._parts.items():
                largest = np.abs(np.nan_to_num(finite[:, columns], nan=0.0)).max(axis=1, initial=0.0)
                reach[columns] = 2 * bought(f"largest magnitude of {part}", largest, 0.5, magnitudes)
            return Bounds(-reach, reach)
        candidates = [*(-value for value in reversed(magnitudes)), 0.0, *magnitudes]
        quartiles = [
            [bought(f"{side} quartile of {name}", known, share, candidates) for side, share in QUARTILES.items()]
            for name, known in zip(self.columns, (column[~np.isnan(column)] for column in finite.T), strict=True)
        ]
        low, high = np.sort(quartiles, axis=1).T
        width = np.where(high > low, high - low, np.maximum(1.0, np.abs(low)))
        return Bounds(low - width, high + width)

    @property
    def _parts(self) -> dict[str, slice]:
        """Columns that share one bound."""
        features = len(self.columns) - self.has_target
        parts = {"all columns": slice(0, features), "the target": slice(features, len(self.columns))}
        return {part: columns for part, columns in parts.items() if columns.start < columns.stop}


def bounds_purchase(
    columns: Sequence[str],
    rows: int,
    epsilon: float,
    delta: float,
    has_target: bool = False,
    remedy: str = "bounds=(0, 100), or such a pair for each column",
) -> BoundsPurchase:
    """The quartiles of every column, or else one bound for all; refused where `epsilon` is enough for neither."""
    names = tuple(columns)
    each = pure_epsilon_within(epsilon, delta, 2 * len(names))
    if rows * each * 0.25 / (2 * 0.75) >= FOR_ALL_COLUMNS:
        return BoundsPurchase(names, has_target, True, each)
    if rows * epsilon < FOR_ONE_BOUND:
        raise DpbnnError(
            f"bounds must be given for so few rows: with {rows} and epsilon {epsilon:.3g} for them, bounds that are "
            f"bought from the data would be mostly chance. Give public ones: {remedy}."
        )
    warn(
        f"With {rows} rows, bounds of each of {len(names)} columns are out of reach, and one is bought for all of them "
        f"together. Public ones cost nothing and serve better: {remedy}."
    )
    parts = 2 if has_target and len(names) > 1 else 1
    return BoundsPurchase(names, has_target, False, pure_epsilon_within(epsilon, delta, parts))


def quantile(values: Any, share: float, permit: Permit, candidates: Sequence[float]) -> float:
    """A private quantile of `values` among public `candidates`.

    Guarantees:
        Adding or removing one value changes no probability by more than the factor e^epsilon of the permit.
    """
    measurement = _measurement(share, permit.spend("quantile"), candidates)
    return float(measurement(np.ascontiguousarray(values, dtype=np.float64)))


def _measurement(share: float, epsilon: float, candidates: Sequence[float]) -> Any:
    dp = opendp()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance(), dp.max_divergence()
    scale = 2 * max(share, 1 - share) / epsilon
    return within(lambda scale: dp.m.make_private_quantile(*space, list(candidates), share, scale), scale, 1, epsilon)


def pure_epsilon_within(epsilon: float, delta: float, count: int) -> float:
    """The largest epsilon of each of `count` releases without delta that together cost `epsilon` at `delta`.

    Exactly, by the binomial distribution of how often `count` randomized responses tell the truth.
    """
    from scipy.stats import binom

    def delta_of(each: float) -> float:
        right = np.arange(count + 1)
        losses = (2 * right - count) * each
        weights = binom.pmf(right, count, 1 / (1 + math.exp(-each)))
        beyond = losses > epsilon
        return float((weights[beyond] * -np.expm1(epsilon - losses[beyond])).sum())

    low, high = epsilon / count, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) <= delta else (low, middle)
    return low
