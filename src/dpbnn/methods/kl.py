"""The gradient of the Kullback-Leibler divergence of a Gaussian for each weight from the prior.

    KL(q || p) = E_q[r(w)] - H(q),      H(q) = sum log std + const

The entropy is exact. So is the first term for a Gaussian prior, ``(mean^2 + std^2) / (2 scale^2)``. For others it is
taken at the draws ``w = mean + std e``: its gradient is ``r'(w)`` in the mean and ``r'(w) e`` in the std.

    >>> import torch, dpbnn
    >>> mean, std = {"w": torch.tensor([0.5])}, {"w": torch.tensor([0.1])}
    >>> in_mean, in_std = kl_gradient(dpbnn.Gaussian(0.5), mean, std, draws=())
    >>> [(part["w"] / divisor).item() for part, divisor in in_mean]
    [2.0]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpbnn.device.flat import of_each
from dpbnn.models.priors import Flat, Gaussian, Prior
from dpbnn.types import Weights

__all__ = ["Draw", "kl_gradient"]

Scaled = tuple[Weights, float]
"""Tensors by name, and what they are to be divided by."""


@dataclass
class Draw:
    """``w = mean + std e``"""

    weights: Weights
    e: Weights


def kl_gradient(prior: Prior, mean: Weights, std: Weights, draws: Sequence[Draw]) -> tuple[list[Scaled], list[Scaled]]:
    """``grad KL`` in the means and in the standard deviations, each as a sum of tensors over divisors.

    A likelihood's weights have a flat prior: the entropy's gradient is left.
    """
    priors = {name: Flat() if name.startswith("likelihood.") else prior.for_weight(name) for name in mean}
    in_mean: list[Scaled] = []
    in_std: list[Scaled] = [(of_each(torch.reciprocal, std), -1.0)]
    for scale in {p.scale: None for p in priors.values() if isinstance(p, Gaussian)}:
        names = [name for name, p in priors.items() if isinstance(p, Gaussian) and p.scale == scale]
        in_mean.append(({name: mean[name] for name in names}, scale**2))
        in_std.append(({name: std[name] for name in names}, scale**2))
    others = [name for name, p in priors.items() if not isinstance(p, (Flat, Gaussian))]
    for draw in draws if others else ():
        sampled = prior.energy_gradient({name: draw.weights[name] for name in others})
        in_mean.append((sampled, len(draws)))
        in_std.append(({name: gradient * draw.e[name] for name, gradient in sampled.items()}, len(draws)))
    return in_mean, in_std
