"""Secret randomness for sampling and noise: each step's draws are a function of one secret key and the step.

A run therefore has no generator state to carry along: an interrupted step is repeated bit for bit, whatever was
drawn ahead of it, and the draws of one step say nothing about those of another.

The key is 32 bytes from the operating system. `torch.Generator` would not do on a CPU: it uses 32 bits of its seed,
few enough to try them all, and its float32 normals end at 5.77 standard deviations, so that a larger value would
prove a record's presence.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.privacy.normals import Normals

__all__ = ["Randomness"]

KEY_BYTES = 32
CHUNK = 2**17
"""Normals that are made at a time: few enough to stay in a processor's cache."""

Draw = Callable[[int, torch.dtype], Tensor]

MERSENNE_WORDS, MERSENNE_OFFSET = 624, 24
"""Where the words of the Mersenne twister lie in the state of torch's CPU generator."""

OPERATING_SYSTEM = "NumPy's SFC64, keyed anew for every step from the operating system's secure generator"
USER = "a seed of the user's"


@dataclass(frozen=True)
class Randomness:
    """All secret draws of one run.

    Guarantees:
        Different steps, and different purposes within a step, draw independently.
        The same key and step draw the same again.
        Normals are standard normals to float32 or better, tails included.
    """

    key: bytes = field(repr=False)
    source: str = OPERATING_SYSTEM

    @staticmethod
    def from_operating_system() -> "Randomness":
        """A fresh key: what every private run uses."""
        return Randomness(os.urandom(KEY_BYTES))

    @staticmethod
    def from_seed(seed: int) -> "Randomness":
        """For tests alone: whoever knows the seed can subtract the noise, so that no guarantee holds."""
        number = _validate.whole_number("unsafe_seed", seed, at_least=0)
        return Randomness(hashlib.blake2b(str(number).encode(), digest_size=KEY_BYTES).digest(), USER)

    def renewed(self) -> "Randomness":
        """A fresh key; a run that was ever seeded by the user stays marked as such."""
        return Randomness(os.urandom(KEY_BYTES), self.source)

    @property
    def is_seeded_by_user(self) -> bool:
        """Whether somebody but the operating system knows the key."""
        return self.source == USER

    def generator(self, purpose: str, step: int, part: int = 0) -> np.random.Generator:
        """The NumPy generator for one purpose in one step."""
        entropy = int.from_bytes(self._derive(purpose, step, part))
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy, pool_size=8)))

    def torch_seed(self, purpose: str, step: int) -> int:
        """A 63-bit seed for a torch generator on a CUDA device, or for one whose seed is hashed again."""
        return int.from_bytes(self._derive(purpose, step, 0)[:8]) >> 1

    def seed_model(self, step: int, device: torch.device) -> None:
        """Seed torch's global generator, from which a model draws by itself: dropout masks.

        Masks are secret: they are drawn by position in the batch, so that for an attacker who knew them, one record
        more would shift the masks of the others. On a CPU the generator's whole state is set, not its 32-bit seed.
        """
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(self.torch_seed("model", step))
        state = torch.default_generator.manual_seed(0).get_state()
        words = self.generator("model", step).integers(0, 2**32, MERSENNE_WORDS, dtype=np.uint64)
        state.numpy()[MERSENNE_OFFSET : MERSENNE_OFFSET + 8 * MERSENNE_WORDS] = words.view(np.uint8)
        torch.default_generator.set_state(state)

    def add_normals(self, tensors: Sequence[Tensor], scale: float, step: int) -> None:
        """Add `scale` times an independent standard normal to every number, in place, as the noise of one step."""
        draw = self._cuda_draws(step, tensors[0].device) if tensors[0].is_cuda else self._cpu_draws(step)
        for pieces in _grouped(tensors):
            sizes = [len(piece) for piece in pieces]
            noise = draw(sum(sizes), pieces[0].dtype)
            for piece, part in zip(pieces, noise.split(sizes), strict=True):
                piece.add_(part, alpha=scale)

    def _cpu_draws(self, step: int) -> Draw:
        generator = self.generator("noise", step)

        def uniforms(count: int) -> Tensor:
            return torch.from_numpy(1.0 - generator.random(count))

        normals = Normals(CHUNK // 2, uniforms, torch.device("cpu"))

        def draw(count: int, dtype: torch.dtype) -> Tensor:
            if dtype == torch.float64:
                return torch.from_numpy(generator.standard_normal(count))
            bits = generator.bit_generator.random_raw((count + 1) // 2).view(np.int64)
            return normals.from_bits(torch.from_numpy(bits))[:count]

        return draw

    def _cuda_draws(self, step: int, device: torch.device) -> Draw:
        generator = torch.Generator(device).manual_seed(self.torch_seed("noise", step))

        def uniforms(count: int) -> Tensor:
            return 1.0 - torch.rand(count, generator=generator, dtype=torch.float64, device=device)

        normals = Normals(CHUNK // 2, uniforms, device)

        def draw(count: int, dtype: torch.dtype) -> Tensor:
            bits = torch.empty((count + 1) // 2, dtype=torch.int64, device=device)
            return normals.from_bits(bits.random_(-(2**63), None, generator=generator))[:count]

        return draw

    def _derive(self, purpose: str, step: int, part: int) -> bytes:
        message = f"{purpose}/{step}/{part}".encode()
        return hashlib.blake2b(message, key=self.key, digest_size=KEY_BYTES).digest()


def _grouped(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """All numbers as flat pieces, in groups of one type and at most `CHUNK` numbers.

    Pieces are half a chunk long, as the two halves of a draw: each thread then reads the noise that it has written,
    and nothing has to travel from one core's cache to another's.
    """
    group: list[Tensor] = []
    for piece in (piece for values in tensors for piece in values.view(-1).split(CHUNK // 2)):
        if group and (sum(map(len, group)) + len(piece) > CHUNK or piece.dtype != group[0].dtype):
            yield group
            group = []
        group.append(piece)
    yield group
