"""What is believed about the weights before any data: ``r(w) = -log p(w)``, up to a constant.

    >>> import torch, dpbnn
    >>> dpbnn.Gaussian(0.1).energy_gradient({"w": torch.tensor([0.02])})
    {'w': tensor([2.])}

A prior takes no data, so that its gradient is added outside the clip and costs no privacy. It acts on the network's
weights; a likelihood's own weights have a flat prior.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from dpbnn import _validate
from dpbnn.types import Weights

__all__ = ["Flat", "Gaussian", "Prior"]


class Prior(ABC):
    """The interface: an energy's gradient at given weights."""

    @abstractmethod
    def energy_gradient(self, weights: Weights) -> Weights:
        """``grad r(w)`` for each weight."""


@dataclass(frozen=True)
class Gaussian(Prior):
    """Independent ``N(0, scale^2)``: ``grad r(w) = w / scale^2``, which is weight decay."""

    scale: float

    def __post_init__(self) -> None:
        _validate.positive("scale", self.scale)

    def energy_gradient(self, weights: Weights) -> Weights:
        """``w / scale^2``"""
        return {name: values / self.scale**2 for name, values in weights.items()}


@dataclass(frozen=True)
class Flat(Prior):
    """No preference: ``grad r(w) = 0``."""

    def energy_gradient(self, weights: Weights) -> Weights:
        """Zeros."""
        return {name: torch.zeros_like(values) for name, values in weights.items()}
