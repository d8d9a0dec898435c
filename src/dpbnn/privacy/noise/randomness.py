"""Secret randomness for sampling and noise: each step's draws are a function of one secret key and the step.

A run therefore has no generator state to carry along: an interrupted step is repeated bit for bit, whatever was
drawn ahead of it, and the draws of one step say nothing about those of another.

The key is 32 bytes from the operating system. `torch.Generator` would not do on a CPU: it uses 32 bits of its seed,
few enough to try them all, and its float32 normals end at 5.77 standard deviations, so that a larger value would
prove a record's presence.
"""

import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.device.generators import Generators
from dpbnn.privacy.noise import cpu as cpu_noise
from dpbnn.privacy.noise import cuda as cuda_noise

__all__ = ["Randomness"]

KEY_BYTES = 32
CHUNK = 2**19
"""Normals that one thread makes at a time: few enough for its caches, and so many that threads rarely meet."""

MERSENNE_WORDS, MERSENNE_OFFSET = 624, 24
"""The number and the place of the Mersenne twister's words in the state of torch's CPU generator."""

OPERATING_SYSTEM = "NumPy's SFC64, keyed anew for every step from the operating system's secure generator"
USER = "a seed of the user's"


@dataclass(frozen=True)
class Randomness:
    """The secret key of one run, from which all its secret draws follow.

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
        """For tests alone: with the seed anybody can subtract the noise, so that no guarantee holds."""
        number = _validate.whole_number("unsafe_seed", seed, at_least=0)
        return Randomness(hashlib.blake2b(str(number).encode(), digest_size=KEY_BYTES).digest(), USER)

    def renewed(self) -> "Randomness":
        """A fresh key; a run that the user has seeded stays marked as seeded."""
        return Randomness(os.urandom(KEY_BYTES), self.source)

    @property
    def is_seeded_by_user(self) -> bool:
        """Whether somebody but the operating system knows the key."""
        return self.source == USER

    def generator(self, purpose: str, step: int, part: int = 0) -> np.random.Generator:
        """The NumPy generator for one purpose in one step."""
        entropy = int.from_bytes(self._derive(purpose, step, part))
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy, pool_size=8)))

    def torch_seed(self, purpose: str, step: int, part: int = 0) -> int:
        """A 63-bit seed for a torch generator on a CUDA device."""
        return int.from_bytes(self._derive(purpose, step, part)[:8]) >> 1

    def masks(self, step: int) -> Generators:
        """The generators from which a model draws in one step: dropout masks.

        Masks are secret. They are drawn by position in the batch: one more record shifts the masks of the others, which
        an attacker who knew them would see.
        """
        return Generators(partial(self.seed_masks, step))

    def seed_masks(self, step: int, generator: torch.Generator) -> None:
        """Bring a generator into the state of one step."""
        self.seed("model", step, 0, generator)

    def reading(self, step: int, row: int) -> Generators:
        """The generators from which the reading of one record in one step draws: augmentation.

        Each record has generators to itself: if a batch shared them, one more record would shift the others' draws.
        """
        return Generators(partial(self.seed_reading, step, row))

    def seed_reading(self, step: int, row: int, generator: torch.Generator) -> None:
        """Bring a generator into the state of one record in one step."""
        self.seed("reading", step, row, generator)

    def seed_process(self, purpose: str, step: int, part: int) -> None:
        """Bring the generators of the whole process into one state: torch's on the CPU, NumPy's and Python's.

        Only for processes that this library starts: in the user's, other code may draw from them or seed them.
        """
        self.seed(f"{purpose}, process", step, part, torch.default_generator)
        self.seed_process_but_torch(purpose, step, part)

    def seed_process_but_torch(self, purpose: str, step: int, part: int) -> None:
        """Bring NumPy's and Python's generators into one state."""
        words = np.frombuffer(self._derive(f"{purpose}, NumPy", step, part), dtype=np.uint32)
        np.random.seed(words)  # noqa: NPY002 - the one that a dataset might use
        random.seed(self._derive(f"{purpose}, Python", step, part))

    def seed(self, purpose: str, step: int, part: int, generator: torch.Generator) -> None:
        """Bring a torch generator into one state; on a CPU the whole of it is set, not its 32-bit seed."""
        generator.manual_seed(self.torch_seed(purpose, step, part))
        if generator.device.type == "cpu":
            state = generator.get_state()
            words = self.generator(purpose, step, part).integers(0, 2**32, MERSENNE_WORDS, dtype=np.uint64)
            state.numpy()[MERSENNE_OFFSET : MERSENNE_OFFSET + 8 * MERSENNE_WORDS] = words.view(np.uint8)
            generator.set_state(state)

    def add_normals(self, tensors: Sequence[Tensor], scale: float, step: int) -> None:
        """Add `scale` times an independent standard normal to every number, in place, as the noise of one step."""
        if tensors[0].is_cuda:
            generator = torch.Generator(tensors[0].device).manual_seed(self.torch_seed("noise", step))
            cuda_noise.add_normals(tensors, scale, cuda_noise.drawn(generator))
        else:
            cpu_noise.add_normals(tensors, scale, lambda part: self.generator("noise", step, part), CHUNK)

    def _derive(self, purpose: str, step: int, part: int) -> bytes:
        message = f"{purpose}/{step}/{part}".encode()
        return hashlib.blake2b(message, key=self.key, digest_size=KEY_BYTES).digest()
