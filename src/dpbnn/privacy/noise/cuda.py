"""Noise on a CUDA device: standard normals in float64, two at a time turned by 45 degrees.

    (a + b) / sqrt(2),  (a - b) / sqrt(2)

are independent standard normals if a and b are. Torch's normals in float64 are made of 53 bits and end at 8.6 standard
deviations; the turned ones are as fine, and end at 12. They are rounded to the type that they are added to.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from dpbnn.device.flat import joined

__all__ = ["Draw", "add_normals", "chunks_of", "drawn", "widest"]

CHUNK = 2**23
"""Numbers that get their noise at a time: what bounds the memory for it."""

Draw = Callable[[int, torch.dtype], Tensor]


def drawn(generator: torch.Generator) -> Draw:
    """Normals from this generator, of standard deviation sqrt(2): as many as are asked for, in float32 or float64."""

    def draw(count: int, dtype: torch.dtype) -> Tensor:
        half, device = (count + 1) // 2, generator.device
        a, b = (torch.empty(half, dtype=torch.float64, device=device).normal_(generator=generator) for _ in range(2))
        turned = torch.empty(count, dtype=dtype, device=device)
        torch.add(a, b, out=turned[:half])
        torch.sub(a[: count - half], b[: count - half], out=turned[half:])
        return turned

    return draw


def widest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The type in which noise for all of them is drawn: a float64 number with noise of float32 would show through."""
    return torch.float64 if any(values.dtype == torch.float64 for values in tensors) else torch.float32


def chunks_of(total: int) -> list[int]:
    """How many normals are drawn at a time."""
    return [min(CHUNK, total - start) for start in range(0, total, CHUNK)]


def add_normals(tensors: Sequence[Tensor], scale: float, draw: Draw) -> None:
    """Add `scale` times an independent standard normal to every number, in place.

    A number's noise depends on its place among all numbers, not on how they lie in memory.
    """
    pieces, start = [piece for (piece,) in joined(tensors)], 0
    for size in chunks_of(sum(map(len, pieces))):
        noise = draw(size, widest(tensors))
        for piece, of_noise in _between(pieces, start, start + size):
            piece.add_(noise[of_noise], alpha=scale / math.sqrt(2))
        start += size


def _between(pieces: Sequence[Tensor], start: int, end: int) -> Iterator[tuple[Tensor, slice]]:
    """What lies from `start` to `end` among all numbers, and where that is, counted from `start`."""
    position = 0
    for piece in pieces:
        first, last = max(start, position), min(end, position + len(piece))
        if first < last:
            yield piece[first - position : last - position], slice(first - start, last - start)
        position += len(piece)
