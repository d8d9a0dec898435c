"""One set of weights.

>>> import torch
>>> posterior = PointEstimate({"w": torch.ones(2)})
>>> [weights["w"].tolist() for weights in posterior.draw(3, seed=0)]
[[1.0, 1.0]]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from dpbnn.posterior.posterior import Posterior
from dpbnn.types import Weights

__all__ = ["DropoutNetwork", "PointEstimate"]


@dataclass(eq=False, repr=False)
class PointEstimate(Posterior):
    """One set of weights: no uncertainty about them."""

    weights: Weights

    kind: ClassVar[str] = "point_estimate"

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """The weights, once: every draw would be the same."""
        yield self.weights

    def tensors(self) -> Weights:
        """The weights, by their plain names."""
        return dict(self.weights)

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """The weights, by their plain names."""
        return cls(dict(tensors))


@dataclass(eq=False, repr=False)
class DropoutNetwork(PointEstimate):
    """One set of weights for a network whose dropout layers stay on: every draw is a network with other masks.

    `draw` yields the weights once. The network draws the masks when it runs, one for each draw and record.
    """

    kind: ClassVar[str] = "dropout_network"
    keeps_dropout: ClassVar[bool] = True
