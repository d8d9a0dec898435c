"""Noise on a CUDA device: standard normals in float64, two at a time turned by 45 degrees.

    (a + b) / sqrt(2),  (a - b) / sqrt(2)

are independent standard normals if a and b are. Torch's own in float64 are made of 53 bits and end at 8.6 standard
deviations; the turned ones are as fine, and end at 12.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["add_normals"]

CHUNK = 2**23
"""Numbers that get their noise at a time: what bounds the memory for it."""


def add_normals(tensors: Sequence[Tensor], scale: float, generator: torch.Generator) -> None:
    """Add `scale` times an independent standard normal to every number, in place."""
    part = scale / math.sqrt(2)
    for numbers in _joined(tensors):
        for piece in numbers.split(CHUNK):
            half = (len(piece) + 1) // 2
            a, b = (_normals(half, piece.device, generator) for _ in range(2))
            first, second = piece.split(half) if len(piece) > 1 else (piece, piece[:0])
            first.add_(a, alpha=part).add_(b, alpha=part)
            second.add_(a[: len(second)], alpha=part).sub_(b[: len(second)], alpha=part)


def _normals(count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    return torch.empty(count, dtype=torch.float64, device=device).normal_(generator=generator)


def _joined(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """All numbers as flat tensors; neighbours in memory are one, which saves launches."""
    start, size = tensors[0], 0
    for values in tensors:
        ahead = values.data_ptr() - start.data_ptr() == size * start.itemsize
        one_piece = values.untyped_storage()._cdata == start.untyped_storage()._cdata
        if ahead and one_piece and values.dtype == start.dtype:
            size += values.numel()
            continue
        yield start.as_strided((size,), (1,))
        start, size = values, values.numel()
    yield start.as_strided((size,), (1,))
