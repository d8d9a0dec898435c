"""Noise for captured steps: each replay of a CUDA graph draws the noise of its own step.

On a device it comes from one generator, which the graphs hold and `begin` seeds before each replay.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpbnn.privacy.noise import cpu as cpu_noise
from dpbnn.privacy.noise import cuda as cuda_noise
from dpbnn.privacy.noise.randomness import CHUNK, Randomness

__all__ = ["DrawnNoise", "GraphNoise"]


class DrawnNoise:
    """Normals that were drawn ahead for one release, on a device; they can be added once."""

    def __init__(self, normals: Iterable[Tensor]) -> None:
        self._normals, self._used = list(normals), 0  # kept: another stream has made them

    def add(self, sums: Sequence[Tensor], sensitivity: float, std: float, step: int) -> None:
        """Add `std` times them; raises if these are not the numbers that they were drawn for."""
        cuda_noise.add_normals(sums, std, self._next)

    def _next(self, count: int, dtype: torch.dtype) -> Tensor:
        noise = self._normals[self._used] if self._used < len(self._normals) else None
        if noise is None or len(noise) != count or noise.dtype != dtype:
            raise RuntimeError("noise that was drawn ahead does not fit; this is a bug, and nothing must be released.")
        self._used += 1
        return noise


class GraphNoise:
    """The noise of the step that was begun last, whichever step was captured.

    Several runs that are captured together draw from it one after another: each has noise of its own.
    """

    def __init__(self, randomness: Randomness, device: torch.device) -> None:
        self._randomness = randomness
        self.device_generator = torch.Generator(device)
        self._step = 0
        self._host_generators: dict[int, np.random.Generator] = {}

    def begin(self, step: int) -> None:
        """The noise that is drawn next is this step's."""
        self._step = step
        self._host_generators.clear()
        self.device_generator.manual_seed(self._randomness.torch_seed("noise", step))

    def sources(self, releases: Sequence[Mapping[str, Tensor]]) -> "list[GraphNoise | DrawnNoise]":
        """What adds the noise of each of these releases, in their order; on a CUDA device it is drawn at once."""
        if not self._draws_on_device:
            return [self for _ in releases]
        draw = cuda_noise.drawn(self.device_generator)
        types = [cuda_noise.widest(gradients.values()) for gradients in releases]
        totals = [sum(values.numel() for values in gradients.values()) for gradients in releases]
        if len(set(types)) == 1 and sum(totals) <= cuda_noise.CHUNK:
            return [DrawnNoise([normals]) for normals in draw(sum(totals), types[0]).split(totals)]
        return [
            DrawnNoise(draw(size, dtype) for size in cuda_noise.chunks_of(total))
            for total, dtype in zip(totals, types, strict=True)
        ]

    def add(self, sums: Sequence[Tensor], sensitivity: float, std: float, step: int) -> None:
        """Add `std` times an independent standard normal to every number, in place."""
        if sums[0].is_cuda:
            cuda_noise.add_normals(sums, std, cuda_noise.drawn(self.device_generator))
        else:
            cpu_noise.add_normals(sums, std, self._host_generator, CHUNK)

    @property
    def _draws_on_device(self) -> bool:
        return self.device_generator.device.type == "cuda"

    def _host_generator(self, part: int) -> np.random.Generator:
        """That of the step that was begun, which goes on from run to run."""
        if part not in self._host_generators:
            self._host_generators[part] = self._randomness.generator("noise", self._step, part)
        return self._host_generators[part]
