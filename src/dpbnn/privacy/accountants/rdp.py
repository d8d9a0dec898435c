"""Renyi differential privacy: a valid bound that always comes quickly (Mironov, Talwar and Zhang, 2019).

The Renyi divergences of the steps add up at every order; the best order converts to epsilon:

    eps = min_a [ rdp(a) + log(1 - 1/a) - log(delta a) / (a - 1) ]

    >>> from dpbnn.privacy.accountants.charge import Charge
    >>> round(account(Charge(sampling_rate=0.01, noise_levels=((1.0, 1000),), delta=1e-5)).epsilon, 4)
    2.1014
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from dpbnn.privacy.accountants.charge import Accounting, Charge

__all__ = ["account", "divergences", "pure_divergences"]

_ROUNDING_PER_STEP = 1e-15  # what float64 can lose in one step's divergence, added so that the bound still holds
_MANY_LEVELS = 16  # beyond it only whole orders are tried, which is as valid and several times quicker
_SMALLEST_NOISE = 1e-100  # below it 1/s^2 overflows


def account(charge: Charge) -> Accounting:
    """The epsilon by Renyi divergences.

    Guarantees:
        RDP is never below the exact Gaussian.
        RDP is never far below PLD.
        RDP for replacing is never below the exact Gaussian.
    """
    orders, remark = RdpAccountant().orders, ""
    if len(charge.noise_levels) > _MANY_LEVELS:
        orders = orders[orders == np.round(orders)]
    total = divergences(charge, tuple(orders))
    if charge.sampling_rate < 1 and charge.records_per_person > 1:
        remark = "several records of a person are charged as one record of larger norm"
    if charge.sampling_rate < 1 and charge.adjacency == "replace_one":
        total = _of_two_changes(orders, total)
        remark = "replacing a person is charged as removing one and adding another"
    return Accounting(float(compute_epsilon(orders, total, charge.delta)[0]), "rdp", remark)


def _of_two_changes(orders: np.ndarray, divergences: np.ndarray) -> np.ndarray:
    """The divergence of removing one person and adding another, by the weak triangle inequality.

    D_a(P || R) <= (a - 1/2) / (a - 1) D_{2a}(P || Q) + D_{2a-1}(Q || R)   (Mironov 2017, Proposition 11)

    Divergences grow with the order, so the next listed order stands for one that is not listed.
    """
    listed = np.append(divergences, math.inf)
    at_double, at_one_less = (listed[np.searchsorted(orders, order - 1e-9)] for order in (2 * orders, 2 * orders - 1))
    return (orders - 0.5) / (orders - 1) * at_double + at_one_less


def divergences(charge: Charge, orders: tuple[float, ...]) -> np.ndarray:
    """The divergence of the whole charge at each order, for records that are added or removed (or replaced, at rate 1).

    A person with k records takes part with probability 1 - (1 - q)^k and moves the sum by at most k. Raising every
    shift of that mixture to k only makes it easier to tell apart.
    """
    is_full = charge.sampling_rate == 1
    limit = charge.records_changed if is_full else charge.records_per_person
    total = np.zeros(len(orders)) + sum(pure_divergences(limit * epsilon, orders) for epsilon in charge.pure_epsilons)
    if is_full:
        return total + _one_step(1.0, charge.full_batch_noise, orders)
    rate = -math.expm1(limit * math.log1p(-charge.sampling_rate))
    for noise, steps in charge.noise_levels:
        total += float(steps) * (np.asarray(_one_step(rate, noise / limit, orders)) + _ROUNDING_PER_STEP)
    return total


def pure_divergences(epsilon: float, orders: Sequence[float]) -> np.ndarray:
    """The divergences of randomized response: every release that is private without a delta is post-processing of it.

    D_a = log[ (e^{a eps} + e^{(1 - a) eps}) / (1 + e^eps) ] / (a - 1)
    """
    a = np.asarray(orders)
    return (np.logaddexp(a * epsilon, (1 - a) * epsilon) - np.logaddexp(0.0, epsilon)) / (a - 1)


@lru_cache(maxsize=1024)
def _one_step(sampling_rate: float, noise: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    if noise < _SMALLEST_NOISE:
        return (math.inf,) * len(orders)
    accountant = RdpAccountant(orders)
    gaussian = GaussianDpEvent(noise)
    with _unconverged_orders_left_out_quietly():
        accountant.compose(PoissonSampledDpEvent(sampling_rate, gaussian) if sampling_rate < 1 else gaussian)
    return tuple(max(0.0, float(value)) for value in accountant.rdp)


@contextmanager
def _unconverged_orders_left_out_quietly() -> Iterator[None]:
    """dp-accounting logs each order whose series does not converge and leaves it out, which is valid."""
    logger = logging.getLogger("absl")

    def is_other(record: logging.LogRecord) -> bool:
        return "failed to converge" not in record.getMessage()

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
