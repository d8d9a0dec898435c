"""Gaussian differential privacy by the central limit theorem: an APPROXIMATION, never a guarantee.

The closed form of Bu, Dong, Long and Su (2020), used by the paper on DP Bayesian neural networks:

    mu = q sqrt( sum_k T_k (e^{1/s_k^2} - 1) )
    delta(eps; mu) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)

It exists to reproduce published figures. It can understate epsilon badly: at noise 0.5, rate 0.001, 1000 steps and
delta 1e-6 it says 0.98 where the true value is 4.24.

    >>> from dpbnn.privacy.accountants.charge import Charge
    >>> round(account(Charge(sampling_rate=0.01, noise_levels=((1.0, 1000),), delta=1e-5)).epsilon, 4)
    1.6177
"""

import math

import numpy as np
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

from dpbnn.privacy.accountants.charge import Accounting, Charge
from dpbnn.privacy.accountants.dominating_pair import binomial_hits

__all__ = ["account"]

_REMARK = "approximation by the central limit theorem, not a bound: the true epsilon can be far larger"
_LARGEST_MU = 1e6


def account(charge: Charge) -> Accounting:
    """The epsilon of the central limit approximation.

    With k records per person the variance of one step is the chi-squared divergence of a binomial mixture,
    sum_j b_j [ (1 + q (e^{j/s^2} - 1))^k - 1 ], which for k = 1 is the q^2 (e^{1/s^2} - 1) above.
    """
    mu = math.sqrt(sum(steps * _chi_squared(charge, noise) for noise, steps in charge.noise_levels))
    pure = charge.records_per_person * sum(charge.pure_epsilons)
    return Accounting(_epsilon(mu, charge.delta) + pure, "gdp", _REMARK)


def _chi_squared(charge: Charge, noise: float) -> float:
    limit, rate = charge.records_per_person, charge.sampling_rate
    hits, weights, _ = binomial_hits(limit, rate)
    with np.errstate(over="ignore"):
        return float(weights @ np.expm1(limit * np.log1p(rate * np.expm1(hits / noise / noise))))


def _epsilon(mu: float, delta: float) -> float:
    if mu > _LARGEST_MU:
        return math.inf
    return float(get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0
