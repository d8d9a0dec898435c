"""The vocabulary of the library on one page.

Private values and public values have different types, so that a reader and a type checker both see which
side of the privacy boundary a line of code is on:

    ClippedSum (private)  --add_noise-->  NoisySum (public)

Everything that takes a `NoisySum` is post-processing and spends no budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["ClippedSum", "Draws", "NoisySum", "Weights"]

Weights = dict[str, Tensor]
"""Network weights, or gradients in them, by their name in ``model.named_parameters()``."""


@dataclass
class Draws:
    """Several draws ``w_j = mean + ...`` at which gradients are taken, to be clipped in two parameters at once.

    A record's gradient is ``(1/N) sum_j (g_j, multipliers_j * g_j)``, stacked in front: ``[2, *shape]`` by name.
    """

    weights: tuple[Weights, ...]
    multipliers: tuple[Weights, ...]


@dataclass
class ClippedSum:
    """A sum of clipped per-record gradients: PRIVATE. It lives within one step, until `add_noise` empties it.

    Sums over many records are in float64; `types` says in which type each is released, whatever the number of records.

    Guarantees:
        Adding or removing one record moves `gradients`, all of them taken together as one vector, by at most
            `sensitivity` in the Euclidean norm.
    """

    gradients: Weights
    sensitivity: float
    types: Mapping[str, torch.dtype] = field(default_factory=dict)


@dataclass(frozen=True)
class NoisySum:
    """A clipped sum with Gaussian noise on it: PUBLIC. A method learns nothing else about the data."""

    gradients: Mapping[str, Tensor]
