"""One set of weights.

>>> import torch
>>> posterior = PointEstimate({"w": torch.ones(2)})
>>> [weights["w"].tolist() for weights in posterior.draw(3, seed=0)]
[[1.0, 1.0]]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpbnn.posterior.posterior import described
from dpbnn.types import Weights

__all__ = ["DropoutNetwork", "PointEstimate"]


@dataclass(frozen=True, repr=False)
class PointEstimate:
    """One set of weights: no uncertainty about them."""

    weights: Weights

    kind: ClassVar[str] = "point_estimate"
    keeps_dropout: ClassVar[bool] = False

    def __repr__(self) -> str:
        return described(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names."""
        return tuple(self.weights)

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """The weights, once: every draw would be the same."""
        yield self.weights

    def tensors(self) -> Weights:
        """The weights."""
        return dict(self.weights)

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """The weights."""
        return cls(dict(tensors))

    def report(self) -> dict[str, Any]:
        """Nothing to say."""
        return {}


@dataclass(frozen=True, repr=False)
class DropoutNetwork(PointEstimate):
    """One set of weights for a network whose dropout layers stay on: every draw is a network with other masks.

    A draw gives the weights alone, once; masks are drawn where the network runs, one for each draw and record.
    """

    kind: ClassVar[str] = "dropout_network"
    keeps_dropout: ClassVar[bool] = True
