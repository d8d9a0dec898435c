"""The interface of a posterior: one verb, `draw`."""

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, Self

from dpbnn.types import Weights

__all__ = ["Posterior", "described"]


class Posterior(Protocol):
    """A distribution over weights."""

    kind: ClassVar[str]
    keeps_dropout: ClassVar[bool]
    """Whether the network's dropout layers draw masks at prediction too."""

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names, those of a likelihood's own among them."""
        ...

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

    def report(self) -> dict[str, Any]:
        """Plain values that a reader of the release should know."""
        ...


def described(posterior: Posterior, *details: str) -> str:
    """For `repr`: how many weights there are, not their values."""
    size = sum(values.numel() for values in next(iter(posterior.draw(1, seed=0))).values())
    return f"{type(posterior).__name__}({', '.join([f'{size:,} weights', *details])})"
