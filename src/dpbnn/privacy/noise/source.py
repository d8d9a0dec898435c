"""Where the noise of a run comes from: one class behind a protocol, chosen by name with `Execution(noise=...)`.

A source is trusted code: a guarantee holds if what it adds is a standard normal times the scale, independent between
numbers and steps, and unknown to everybody. The guarantee names it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.privacy.noise.randomness import Randomness

__all__ = ["NOISE_SOURCES", "AddsNormals", "NoiseSource", "StandardNoise", "noise_source"]


class AddsNormals(Protocol):
    """What `add_noise` needs."""

    def add_normals(self, tensors: Sequence[Tensor], scale: float, step: int) -> None:
        """Add `scale` times an independent standard normal to every number, in place, as the noise of one step."""
        ...


class NoiseSource(AddsNormals, Protocol):
    """Noise that follows from the run's secret randomness: a step that is taken again draws the same again."""

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

    def add_normals(self, tensors: Sequence[Tensor], scale: float, step: int) -> None:
        """On a CPU by all threads, on a GPU by its own generator."""
        self.randomness.add_normals(tensors, scale, step)

    def in_graphs(self, device: torch.device) -> GraphNoise:
        """From one generator that is seeded before each replay."""
        return GraphNoise(self.randomness, device)


NOISE_SOURCES: dict[str, Callable[[Randomness], NoiseSource]] = {"standard": StandardNoise}
"""By name. Another source is one class, made from a `Randomness`, and one line here."""


def noise_source(name: str, randomness: Randomness) -> NoiseSource:
    """The source of this name, keyed by the run's randomness."""
    return NOISE_SOURCES[_validate.one_of("noise", name, NOISE_SOURCES)](randomness)
