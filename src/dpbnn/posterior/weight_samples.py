"""Weights that a chain has visited, each with an importance.

>>> import torch
>>> posterior = WeightSamples({"w": torch.arange(6.0).reshape(6, 1)}, torch.ones(6))
>>> len(list(posterior.draw(3, seed=0))), len(list(posterior.draw(100, seed=0)))
(3, 6)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dpbnn.posterior.effective_sample_size import effective_sample_size, report_on, watched
from dpbnn.posterior.posterior import described
from dpbnn.seeds import derived_seed
from dpbnn.types import Weights

__all__ = ["WeightSamples"]

SAMPLES, IMPORTANCE = "samples/", "importance"


@dataclass(frozen=True, repr=False)
class WeightSamples:
    """``[samples, *shape]`` for each weight, in memory or mapped from disk, and ``[samples]`` importances.

    A step with a larger learning rate covers more of the chain's time, so that its sample counts for more.
    """

    samples: Weights
    importance: Tensor

    kind: ClassVar[str] = "weight_samples"
    keeps_dropout: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.importance)

    def __repr__(self) -> str:
        return described(self, f"{len(self)} samples")

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names."""
        return tuple(self.samples)

    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """Samples spread evenly over the chain, each as often as its importance asks for; all where there are fewer.

        Systematic resampling: one uniform number, then equal strides through the cumulated importances.
        """
        count = min(num_draws, len(self))
        offset = derived_seed(seed) / 2**63
        ends = self.importance.double().cpu().cumsum(dim=0)
        positions = (torch.arange(count, dtype=torch.float64) + offset) * (ends[-1] / count)
        for index in torch.searchsorted(ends, positions, right=True).clamp(max=len(self) - 1).tolist():
            yield self.sample(index)

    def sample(self, index: int) -> Weights:
        """One of them, in float32 or wider."""
        found = {name: values[index] for name, values in self.samples.items()}
        return {name: values.float() if values.dtype.itemsize < 4 else values for name, values in found.items()}

    @cached_property
    def trace(self) -> Tensor:
        """Some weights over all samples, ``[samples, coordinates]``: to look at, and to tell how dependent they are."""
        positions = watched({name: values.shape[1:] for name, values in self.samples.items()})
        columns = [values.flatten(1)[:, positions[name].to(values.device)] for name, values in self.samples.items()]
        return torch.cat([column.double().cpu() for column in columns], dim=1)

    @property
    def effective_sample_size(self) -> float:
        """The median over the watched weights of the independent draws that the samples are worth."""
        spread = self.importance.double()
        evenness = float(spread.sum().square() / (len(self) * spread.square().sum()))
        return evenness * float(effective_sample_size(self.trace).median())

    def tensors(self) -> Weights:
        """Samples and importances."""
        return {SAMPLES + name: values for name, values in self.samples.items()} | {IMPORTANCE: self.importance}

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """Samples and importances."""
        samples = {name.removeprefix(SAMPLES): v for name, v in tensors.items() if name.startswith(SAMPLES)}
        return cls(samples, tensors[IMPORTANCE])

    def report(self) -> dict[str, Any]:
        """How many samples there are, and what they are worth."""
        return report_on(len(self), self.effective_sample_size)
