"""Independent Gaussians, one for each weight: ``w = mean + std * e``, e standard normal.

>>> import torch
>>> posterior = MeanField({"w": torch.zeros(2)}, {"w": torch.ones(2)})
>>> len(list(posterior.draw(3, seed=0)))
3
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dpbnn.posterior.posterior import Posterior
from dpbnn.seeds import derived_seed, standard_normals
from dpbnn.types import Weights

__all__ = ["MeanField"]


@dataclass(eq=False, repr=False)
class MeanField(Posterior):
    """``N(mean, std^2)`` for each weight by itself."""

    mean: Weights
    std: Weights

    kind: ClassVar[str] = "mean_field"

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """Exactly `num_draws` weights."""
        base = derived_seed(seed)
        for index in range(num_draws):
            e = standard_normals(self.mean, derived_seed(base, index))
            yield {name: e[name].mul_(self.std[name]).add_(mean) for name, mean in self.mean.items()}
