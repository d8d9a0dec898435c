"""How far a Gaussian for each weight is from the prior, and which way leads closer.

    KL(q || p) = E_q[r(w)] - H(q),      H(q) = sum log std + const

The entropy is exact. For a Gaussian prior so is the first term, ``(mean^2 + std^2) / (2 scale^2)``; for others it is
taken at the draws ``w = mean + std e``: its gradient is ``r'(w)`` in the mean and ``r'(w) e`` in the std.

    >>> import torch, dpbnn
    >>> q = dpbnn.posterior.MeanField({"w": torch.zeros(3)}, {"w": torch.full((3,), 0.1)})
    >>> round(kl_divergence(q, dpbnn.Gaussian(0.2)).item(), 4)
    0.9544
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpbnn.device.flat import of_each
from dpbnn.errors import DpbnnError
from dpbnn.models.priors import Flat, Gaussian, Prior
from dpbnn.posterior import MeanField
from dpbnn.types import Weights

__all__ = ["Draw", "kl_divergence", "kl_gradient"]


Scaled = tuple[Weights, float]
"""Tensors by name, and what they are to be divided by."""


@dataclass
class Draw:
    """``w = mean + std e``"""

    weights: Weights
    e: Weights


def kl_divergence(posterior: MeanField, prior: Prior) -> Tensor:
    """``KL(q || p)`` over the network's weights, in float64; a Gaussian prior for each is needed."""
    total = torch.zeros((), dtype=torch.float64)
    for name in (name for name in posterior.names if not name.startswith("likelihood.")):
        own = prior.for_weight(name)
        if not isinstance(own, Gaussian):
            raise DpbnnError(f"A closed form needs a Gaussian prior for every weight, got {own} for '{name}'.")
        mean, ratio = posterior.mean[name].double(), posterior.std[name].double() / own.scale
        total = total + ((mean / own.scale).square() + ratio.square() - 1 - 2 * ratio.log()).sum().cpu() / 2
    return total


def kl_gradient(prior: Prior, mean: Weights, std: Weights, draws: Sequence[Draw]) -> tuple[list[Scaled], list[Scaled]]:
    """``grad KL`` in the means and in the standard deviations, each as a sum of tensors over divisors.

    A likelihood's own weights have a flat prior: what is left is the entropy's.
    """
    own = {name: _prior_of(prior, name) for name in mean}
    in_mean: list[Scaled] = []
    in_std: list[Scaled] = [(of_each(torch.reciprocal, std), -1.0)]
    for scale in {p.scale: None for p in own.values() if isinstance(p, Gaussian)}:
        names = [name for name, p in own.items() if isinstance(p, Gaussian) and p.scale == scale]
        in_mean.append(({name: mean[name] for name in names}, scale**2))
        in_std.append(({name: std[name] for name in names}, scale**2))
    others = [name for name, p in own.items() if not isinstance(p, (Flat, Gaussian))]
    for draw in draws if others else ():
        sampled = prior.energy_gradient({name: draw.weights[name] for name in others})
        in_mean.append((sampled, len(draws)))
        in_std.append(({name: gradient * draw.e[name] for name, gradient in sampled.items()}, len(draws)))
    return in_mean, in_std


def _prior_of(prior: Prior, name: str) -> Prior:
    return Flat() if name.startswith("likelihood.") else prior.for_weight(name)
