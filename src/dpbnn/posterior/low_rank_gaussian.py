"""A Gaussian with a few directions written out: what is left of a chain that is too big to keep.

    w = mean + sqrt(diagonal) * e + directions' z,      e and z standard normal

The variance of each weight is that of the chain exactly: `diagonal` is what the directions do not already hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dpbnn.posterior.effective_sample_size import effective_sample_size, report_on
from dpbnn.posterior.posterior import described
from dpbnn.seeds import derived_seed, standard_normals
from dpbnn.types import Weights

__all__ = ["LowRankGaussian"]

MEAN, DIAGONAL, DIRECTIONS, TRACE = "mean/", "diagonal/", "directions/", "trace"


@dataclass(frozen=True, repr=False)
class LowRankGaussian:
    """``N(mean, diag(diagonal) + directions' directions)``; `directions` is ``[rank, *shape]`` for each weight.

    `trace` holds some weights over the iterates that were summed up, ``[samples, coordinates]``.
    """

    mean: Weights
    diagonal: Weights
    directions: Weights
    trace: Tensor

    kind: ClassVar[str] = "low_rank_gaussian"
    keeps_dropout: ClassVar[bool] = False

    def __repr__(self) -> str:
        return described(self, f"rank {len(next(iter(self.directions.values())))}")

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names."""
        return tuple(self.mean)

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """As many as are asked for."""
        own = derived_seed(seed)
        rank = {"": next(iter(self.directions.values())).flatten(1)[:, 0]}
        for index in range(num_draws):
            e = standard_normals(self.mean, derived_seed(own, index, 0))
            z = standard_normals(rank, derived_seed(own, index, 1))[""]
            yield {
                name: e[name].mul_(self.diagonal[name].sqrt()).add_(mean).add_(_along(z, self.directions[name]))
                for name, mean in self.mean.items()
            }

    @property
    def effective_sample_size(self) -> float:
        """The median over the watched weights of the independent draws that the chain is worth."""
        return float(effective_sample_size(self.trace).median())

    def tensors(self) -> Weights:
        """Mean, diagonal, directions and trace."""
        parts = {MEAN: self.mean, DIAGONAL: self.diagonal, DIRECTIONS: self.directions}
        named = {prefix + name: values for prefix, part in parts.items() for name, values in part.items()}
        return named | {TRACE: self.trace}

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """Mean, diagonal, directions and trace."""
        mean, diagonal, directions = (
            {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
            for prefix in (MEAN, DIAGONAL, DIRECTIONS)
        )
        return cls(mean, diagonal, directions, tensors[TRACE])

    def report(self) -> dict[str, Any]:
        """How many iterates were summed up, and what they are worth."""
        return report_on(len(self.trace), self.effective_sample_size)


def _along(z: Tensor, directions: Tensor) -> Tensor:
    return torch.tensordot(z.to(directions.dtype), directions, dims=1)
