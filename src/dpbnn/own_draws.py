"""Random numbers that hide nothing: a method's and a posterior's own draws, repeatable from the user's seed.

Noise, sampling and masks are secret and never come from here (`dpbnn.privacy.randomness`).

    >>> import torch
    >>> first, again = (standard_normals({"w": torch.zeros(3)}, derived_seed(7, 0)) for _ in range(2))
    >>> bool((first["w"] == again["w"]).all())
    True
"""

import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from dpbnn.types import Weights

__all__ = ["derived_seed", "standard_normals"]

PIECE = 2**18
"""Numbers from one generator: pieces are filled by several threads, and do not depend on how many."""


def derived_seed(seed: int | None, *path: int) -> int:
    """A 63-bit seed for one place in a run; fresh from None."""
    if seed is None:
        return secrets.randbits(63)
    return int.from_bytes(hashlib.blake2b(repr((seed, *path)).encode(), digest_size=8).digest()) >> 1


def standard_normals(like: Weights, seed: int) -> Weights:
    """An independent standard normal for every number, in the shapes and types of `like`, whatever its order."""
    names = sorted(like)
    first, sizes = like[names[0]], [like[name].numel() for name in names]
    flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
    if flat.is_cuda:
        flat.normal_(generator=torch.Generator(flat.device).manual_seed(seed))
    else:
        _fill(flat, seed)
    return {n: part.view(like[n].shape).to(like[n].dtype) for n, part in zip(names, flat.split(sizes), strict=True)}


def _fill(flat: Tensor, seed: int) -> None:
    def fill(numbered: tuple[int, Tensor]) -> None:
        position, piece = numbered
        piece.normal_(generator=torch.Generator().manual_seed(derived_seed(seed, position)))

    pieces = list(enumerate(flat.split(PIECE)))
    if len(pieces) == 1:
        fill(pieces[0])
        return
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        list(pool.map(fill, pieces))
