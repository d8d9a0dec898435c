"""Random numbers that hide nothing: the draws of methods and posteriors, repeatable from the user's seed.

Noise, sampling and masks are secret and never come from here (`dpbnn.privacy.noise.randomness`).

    >>> import torch
    >>> first, again = (standard_normals({"w": torch.zeros(3)}, derived_seed(7, 0)) for _ in range(2))
    >>> bool((first["w"] == again["w"]).all())
    True
"""

import hashlib
import secrets

import torch

from dpbnn.types import Weights

__all__ = ["FlatWeights", "derived_seed", "standard_normals"]


def derived_seed(seed: int | None, *path: int) -> int:
    """A 63-bit seed for one place in a run; fresh from None."""
    if seed is None:
        return secrets.randbits(63)
    return int.from_bytes(hashlib.blake2b(repr((seed, *path)).encode(), digest_size=8).digest()) >> 1


class FlatWeights:
    """Weights in one piece of memory, `numbers`; `views` has them by name. The order of names does not matter."""

    def __init__(self, like: Weights) -> None:
        names = sorted(like)
        first, sizes = like[names[0]], [like[name].numel() for name in names]
        self.numbers = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        parts = dict(zip(names, self.numbers.split(sizes), strict=True))
        self.views = {name: parts[name].view(values.shape) for name, values in like.items()}

    @staticmethod
    def copied(weights: Weights) -> "FlatWeights":
        """The same numbers."""
        flat = FlatWeights(weights)
        for name, values in weights.items():
            flat.views[name].copy_(values)
        return flat

    def draw_normals(self, seed: int) -> None:
        """An independent standard normal in every place."""
        self.numbers.normal_(generator=torch.Generator(self.numbers.device).manual_seed(seed))


def standard_normals(like: Weights, seed: int) -> Weights:
    """An independent standard normal for every number, in the shapes of `like`."""
    flat = FlatWeights(like)
    flat.draw_normals(seed)
    return flat.views
