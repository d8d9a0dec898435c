"""Where the noise of a run comes from: one class behind a protocol, chosen by name with `Execution(noise=...)`.

A source is trusted code. The guarantee names it, and holds if its noise makes the sums of two neighbouring data sets as
hard to tell apart as Gaussian noise of the requested standard deviation does, and is secret and fresh in each step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.privacy.noise.randomness import Randomness

__all__ = ["NOISE_SOURCES", "AddsNoise", "NoiseSource", "StandardNoise", "foreign_source"]


class AddsNoise(Protocol):
    """What `add_noise` needs."""

    def add(self, sums: Sequence[Tensor], sensitivity: float, std: float, step: int) -> None:
        """Write the noisy sums of one step over the exact ones.

        Args:
            sums: clipped sums, contiguous, in float32 or float64, in the order of their names.
            sensitivity: the most that one record moves all of them together, in the Euclidean norm.
            std: the noise multiplier times the sensitivity. A source that rounds may need more, never less.
            step: no two steps of a run may share noise; a step that is taken again must draw the same again.
        """
        ...


class NoiseSource(AddsNoise, Protocol):
    """Made from the run's secret `Randomness`, which gives each step generators of its own."""

    @property
    def source(self) -> str:
        """What the guarantee says of it."""
        ...

    def in_graphs(self, device: torch.device) -> GraphNoise | None:
        """The same noise from a generator that CUDA graphs can hold; None if it must be added between graphs."""
        ...


@dataclass(frozen=True)
class StandardNoise:
    """NumPy's and torch's generators, keyed for each step (`dpbnn.privacy.noise.randomness`)."""

    randomness: Randomness

    @property
    def source(self) -> str:
        """As the run's other draws."""
        return self.randomness.source

    def add(self, sums: Sequence[Tensor], sensitivity: float, std: float, step: int) -> None:
        """On a CPU by all threads, on a GPU by its generator."""
        self.randomness.add_normals(sums, std, step)

    def in_graphs(self, device: torch.device) -> GraphNoise:
        """From one generator that is seeded before each replay."""
        return GraphNoise(self.randomness, device)


NOISE_SOURCES: dict[str, Callable[[Randomness], NoiseSource]] = {"standard": StandardNoise}
"""By name. Another source is one class, made from a `Randomness`, and one line here."""


def foreign_source(name: str) -> str:
    """The module that a noise source comes from; empty for the package's own."""
    make = NOISE_SOURCES[name]
    return "" if make is StandardNoise else str(getattr(make, "__module__", type(make).__module__))
