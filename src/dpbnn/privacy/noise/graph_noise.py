"""Noise for captured steps: a CUDA graph holds where noise is drawn, and each replay draws that of its own step.

On a device it comes from one generator, which the graphs hold and `begin` seeds before each replay.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpbnn.privacy.noise import cuda as cuda_noise
from dpbnn.privacy.noise.randomness import Randomness

__all__ = ["GraphNoise"]


class GraphNoise(Randomness):
    """Randomness whose noise is that of the step that was begun last, whatever step stands in a graph.

    Several runs that are captured together draw from it one after another: each has noise of its own.
    """

    def __init__(self, randomness: Randomness, device: torch.device) -> None:
        super().__init__(randomness.key, randomness.source)
        self.device_generator = torch.Generator(device)
        self._step = 0
        self._host_generators: dict[int, np.random.Generator] = {}
        self._ahead: deque[Tensor] = deque()
        self._used: list[Tensor] = []

    def begin(self, step: int) -> None:
        """The noise that is drawn next is this step's."""
        self._step = step
        self._host_generators.clear()
        self._ahead.clear()
        self._used.clear()
        self.device_generator.manual_seed(self.torch_seed("noise", step))

    def generator(self, purpose: str, step: int, part: int = 0) -> np.random.Generator:
        """For noise on a CPU, that of the step that was begun, which goes on from run to run."""
        if purpose != "noise":
            return super().generator(purpose, step, part)
        if part not in self._host_generators:
            self._host_generators[part] = super().generator(purpose, self._step, part)
        return self._host_generators[part]

    def draw_on_device(self, step: int, device: torch.device) -> cuda_noise.Draw:
        """From the one generator, or what was drawn ahead."""
        return self._next if self._ahead else cuda_noise.drawn(self.device_generator)

    def draw_ahead(self, releases: Sequence[Mapping[str, Tensor]]) -> None:
        """Draw the noise of these releases, to be asked for in this order; small ones all at once."""
        draw = cuda_noise.drawn(self.device_generator)
        types = [cuda_noise.widest(gradients.values()) for gradients in releases]
        totals = [sum(values.numel() for values in gradients.values()) for gradients in releases]
        if len(set(types)) == 1 and sum(totals) <= cuda_noise.CHUNK:
            self._ahead.extend(draw(sum(totals), types[0]).split(totals))
            return
        for total, dtype in zip(totals, types, strict=True):
            self._ahead.extend(draw(size, dtype) for size in cuda_noise.chunks_of(total))

    def _next(self, count: int, dtype: torch.dtype) -> Tensor:
        noise = self._ahead.popleft()
        if len(noise) != count or noise.dtype != dtype:
            raise RuntimeError("noise that was drawn ahead does not fit; this is a bug, and nothing must be released.")
        self._used.append(noise)  # another stream has made it: its memory must not be given out again yet
        return noise
