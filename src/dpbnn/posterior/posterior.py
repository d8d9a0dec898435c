"""What a run has learned about the weights; one verb, `draw`.

>>> import torch
>>> posterior = PointEstimate({"w": torch.ones(2)})
>>> [weights["w"].tolist() for weights in posterior.draw(3, seed=0)]
[[1.0, 1.0]]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from dpbnn.types import Weights

__all__ = ["POSTERIORS", "PointEstimate", "Posterior"]


class Posterior(Protocol):
    """A distribution over weights."""

    kind: ClassVar[str]

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """At most `num_draws` weights; fewer where the posterior holds fewer."""
        ...

    def tensors(self) -> Weights:
        """Everything to be saved, by name."""
        ...

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """What `tensors` gave."""
        ...


@dataclass(frozen=True)
class PointEstimate:
    """One set of weights: no uncertainty about them."""

    weights: Weights

    kind: ClassVar[str] = "point_estimate"

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


POSTERIORS = {PointEstimate.kind: PointEstimate}
"""By the name under which they are saved."""
