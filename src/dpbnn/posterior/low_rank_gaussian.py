"""A Gaussian of low rank plus a diagonal: the summary of a chain that is too big to keep.

    w = mean + sqrt(diagonal) * e + directions' z,      e and z standard normal

The variance of each weight is exactly the chain's: `diagonal` is the variance less that of the directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpbnn.posterior.effective_sample_size import chain_report, effective_sample_size
from dpbnn.posterior.posterior import Posterior
from dpbnn.seeds import derived_seed, standard_normals
from dpbnn.types import Weights

__all__ = ["LowRankGaussian"]


@dataclass(eq=False, repr=False)
class LowRankGaussian(Posterior):
    """``N(mean, diag(diagonal) + directions' directions)``; `directions` is ``[rank, *shape]`` for each weight.

    `trace` holds some weights over the iterates that were summarized, ``[samples, coordinates]``.
    """

    mean: Weights
    diagonal: Weights
    directions: Weights
    trace: Tensor

    kind: ClassVar[str] = "low_rank_gaussian"

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """Exactly `num_draws` weights."""
        base = derived_seed(seed)
        like = {"z": self._first_directions.flatten(1)[:, 0]}
        for index in range(num_draws):
            e = standard_normals(self.mean, derived_seed(base, index, 0))
            z = standard_normals(like, derived_seed(base, index, 1))["z"]
            weights = {}
            for name, mean in self.mean.items():
                directions = self.directions[name]
                along = torch.tensordot(z.to(directions.dtype), directions, dims=1)
                weights[name] = e[name].mul_(self.diagonal[name].sqrt()).add_(mean).add_(along)
            yield weights

    @property
    def effective_sample_size(self) -> float:
        """How many independent draws the chain is worth: the median over the traced weights."""
        return float(effective_sample_size(self.trace).median())

    def report(self) -> dict[str, Any]:
        """The numbers of iterates and of independent draws that they are worth."""
        return chain_report(len(self.trace), self.effective_sample_size)

    @property
    def _first_directions(self) -> Tensor:
        return next(iter(self.directions.values()))

    def _details(self) -> tuple[str, ...]:
        return (f"rank {len(self._first_directions)}",)
