"""Independent Gaussians, one for each weight: ``w = mean + std * e``, e standard normal.

>>> import torch
>>> posterior = MeanField({"w": torch.zeros(2)}, {"w": torch.ones(2)})
>>> len(list(posterior.draw(3, seed=0)))
3
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpbnn.posterior.posterior import described
from dpbnn.seeds import derived_seed, standard_normals
from dpbnn.types import Weights

__all__ = ["MeanField"]

MEAN, STD = "mean/", "std/"


@dataclass(frozen=True, repr=False)
class MeanField:
    """``N(mean, std^2)`` for each weight by itself."""

    mean: Weights
    std: Weights

    kind: ClassVar[str] = "mean_field"
    keeps_dropout: ClassVar[bool] = False

    def __repr__(self) -> str:
        return described(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names."""
        return tuple(self.mean)

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """As many as are asked for."""
        own = derived_seed(seed)
        for index in range(num_draws):
            e = standard_normals(self.mean, derived_seed(own, index))
            yield {name: e[name].mul_(self.std[name]).add_(mean) for name, mean in self.mean.items()}

    def tensors(self) -> Weights:
        """Means and standard deviations."""
        means = {MEAN + name: values for name, values in self.mean.items()}
        return means | {STD + name: values for name, values in self.std.items()}

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """Means and standard deviations."""
        return cls(
            {name.removeprefix(MEAN): values for name, values in tensors.items() if name.startswith(MEAN)},
            {name.removeprefix(STD): values for name, values in tensors.items() if name.startswith(STD)},
        )

    def report(self) -> dict[str, Any]:
        """Nothing to say."""
        return {}
