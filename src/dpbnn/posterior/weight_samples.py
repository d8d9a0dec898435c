"""Weights that a chain has visited, each with an importance.

>>> import torch
>>> posterior = WeightSamples({"w": torch.arange(6.0).reshape(6, 1)}, torch.ones(6))
>>> len(list(posterior.draw(3, seed=0))), len(list(posterior.draw(100, seed=0)))
(3, 6)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpbnn.posterior.effective_sample_size import chain_report, effective_sample_size, traced_positions
from dpbnn.posterior.posterior import Posterior
from dpbnn.seeds import derived_seed
from dpbnn.types import Weights

__all__ = ["WeightSamples"]


@dataclass(eq=False, repr=False)
class WeightSamples(Posterior):
    """``[samples, *shape]`` for each weight, in memory or mapped from disk, and ``[samples]`` importances.

    A step with a larger learning rate covers more of the chain's time, so its sample counts for more.
    """

    samples: Weights
    importance: Tensor

    kind: ClassVar[str] = "weight_samples"

    def __len__(self) -> int:
        return len(self.importance)

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """Samples spread evenly over the chain, each as often as its importance asks for; all, if there are fewer.

        Systematic resampling: one uniform number, then equal strides through the cumulated importances.
        """
        count = min(num_draws, len(self))
        offset = derived_seed(seed) / 2**63
        ends = self.importance.double().cpu().cumsum(dim=0)
        positions = (torch.arange(count, dtype=torch.float64) + offset) * (ends[-1] / count)
        for index in torch.searchsorted(ends, positions, right=True).clamp(max=len(self) - 1).tolist():
            yield self.sample(index)

    def sample(self, index: int) -> Weights:
        """One sample, in float32 or wider."""
        sample = {name: values[index] for name, values in self.samples.items()}
        return {name: values.float() if values.dtype.itemsize < 4 else values for name, values in sample.items()}

    @cached_property
    def trace(self) -> Tensor:
        """Some weights over all samples, ``[samples, coordinates]``: for plots, and for the effective sample size."""
        positions = traced_positions({name: values.shape[1:] for name, values in self.samples.items()})
        columns = [values.flatten(1)[:, positions[name].to(values.device)] for name, values in self.samples.items()]
        return torch.cat([column.double().cpu() for column in columns], dim=1)

    @property
    def effective_sample_size(self) -> float:
        """How many independent draws the samples are worth: the median over the traced weights."""
        importance = self.importance.double()
        evenness = float(importance.sum().square() / (len(self) * importance.square().sum()))
        return evenness * float(effective_sample_size(self.trace).median())

    def report(self) -> dict[str, Any]:
        """The numbers of samples and of independent draws that they are worth."""
        return chain_report(len(self), self.effective_sample_size)

    def _details(self) -> tuple[str, ...]:
        return (f"{len(self)} samples",)
