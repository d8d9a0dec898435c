"""The operations of clipping between matrix products, in one launch each: for CUDA devices with Triton.

    squares            |v_i|^2
    products           |a_i|^2 |g_i|^2
    factors            f_i, what each record's gradient is multiplied with
    finite             v in float64, zero where it is not finite
    scaled             f_i v_i
    weighted_sum       sum_i f_i v_i
    weighted_product   sum_i f_i sum_t g_it a_it'

Guarantees:
    Everything is computed in float64 and rounded once, when it is stored.
    A record with factor zero contributes exactly zero, whatever it holds.
    The order of additions is fixed: the same numbers give the same result.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpbnn.device import kernels

__all__ = ["factors", "finite", "is_used_for", "products", "scaled", "squares", "weighted_product", "weighted_sum"]

PIECE = 16384
"""Numbers of a row that one program adds up, and below, how many at a time."""
LARGEST_BLOCK, BLOCK, FEW = 4096, 1024, 128
LONG = 2**17
"""From this length on there are columns enough to keep a device busy."""


def is_used_for(values: Tensor) -> bool:
    """Whether these kernels run on the device of `values`, for its type."""
    return values.is_cuda and values.dtype in (torch.float32, torch.float64) and kernels.work()


@cache
def _kernels() -> Any:
    from dpbnn.device.kernels import clipping as of_clipping

    return of_clipping


def squares(values: Tensor) -> Tensor:
    """``|v_i|^2`` of each row of ``[rows, length]``."""
    if not len(values):
        return values.new_empty(0, dtype=torch.float64)
    values = values.contiguous()
    pieces = max(1, math.ceil(values.shape[1] / PIECE))
    out = values.new_empty(len(values), pieces, dtype=torch.float64)
    block = _block(values.shape[1])
    with torch.cuda.device_of(values):  # where Triton launches; nothing for what is not on a GPU
        _kernels().squares[len(values), pieces](values, out, values.shape[1], pieces, PIECE=PIECE, BLOCK=block)
    return out[:, 0] if pieces == 1 else out.sum(dim=1)


def products(inputs: Tensor, output_gradients: Tensor, smallest: float) -> Tensor:
    """``|a_i|^2 |g_i|^2`` of the rows of ``[rows, d]`` and ``[rows, p]``; each norm counts as `smallest` at least."""
    a, g = inputs.contiguous(), output_gradients.contiguous()
    out, block = a.new_empty(len(a), dtype=torch.float64), _block(max(a.shape[1], g.shape[1]))
    with torch.cuda.device_of(a):
        _kernels().products[(len(a),)](a, g, out, a.shape[1], g.shape[1], smallest, BLOCK=block)
    return out


def _block(length: int) -> int:
    """A power of two that takes few turns for so many numbers."""
    return min(LARGEST_BLOCK, max(128, 2 ** math.ceil(math.log2(max(1, length)))))


def factors(terms: Tensor, present: Tensor | None, largest: float, limit: float, offset: float | None) -> Tensor:
    """From the terms ``[terms, records]`` of squared norms what each record is multiplied with.

    ``min(1, limit / norm)``, or ``limit / (norm + offset)`` if there is an offset; zero beyond the largest norm, where
    it is no number, and for what is not present.
    """
    out = torch.empty_like(terms[0])
    with torch.cuda.device_of(terms):
        _kernels().factors[(math.ceil(len(out) / FEW),)](
            terms.contiguous(),
            terms if present is None else present.contiguous(),
            out,
            len(terms),
            len(out),
            largest,
            *_in_two(limit),
            *_in_two(offset or 0.0),
            HAS_PRESENT=present is not None,
            CLIPS=not math.isinf(limit),
            ADDS=offset is not None,
            BLOCK=FEW,
        )
    return out


def _in_two(value: float) -> tuple[float, float]:
    """A number as the sum of two: Triton passes numbers in float32."""
    coarse = float(np.float32(value))
    return coarse, 0.0 if math.isinf(value) else value - coarse


def finite(values: Tensor) -> Tensor:
    """In float64, with zeros in place of numbers that are not finite."""
    values = values.contiguous()
    out = torch.empty_like(values, dtype=torch.float64)
    with torch.cuda.device_of(values):
        _kernels().finite[(math.ceil(values.numel() / BLOCK),)](values, out, values.numel(), BLOCK=BLOCK)
    return out


def scaled(values: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """``f_i v_i`` of ``[records, ...]``, in this type."""
    values = values.contiguous()
    out, length = torch.empty_like(values, dtype=dtype), values[0].numel()
    with torch.cuda.device_of(values):
        _kernels().scaled[math.ceil(length / BLOCK), len(values)](values, weights, out, length, BLOCK=BLOCK)
    return out


def weighted_sum(
    values: Tensor, weights: Tensor, out: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``sum_i f_i v_i`` of ``[records, ...]`` in this type, or in `out`, of any type."""
    values = values.contiguous()
    length = values[0].numel()
    is_place = out is not None and out.is_contiguous()
    wanted = dtype or values.dtype if out is None else out.dtype
    total = out if out is not None and is_place else values.new_empty(values.shape[1:], dtype=wanted)
    rows, columns = (4, 1024) if length >= LONG else (64, 32)  # few registers: others run at the same time
    with torch.cuda.device_of(values):
        _kernels().weighted_sum[(math.ceil(length / columns),)](
            values, weights, total, len(values), length, ROWS=rows, COLUMNS=columns, num_warps=8
        )
    return total if out is None or out is total else out.copy_(total)


def weighted_product(inputs: Tensor, output_gradients: Tensor, weights: Tensor, out: Tensor) -> None:
    """``sum_i f_i sum_t g_it a_it'`` of ``[records, positions, d]`` and ``[records, positions, p]``, into ``[p, d]``.

    For small products: those of matrices that keep a device busy are faster in torch.
    """
    a, g = inputs.contiguous(), output_gradients.contiguous()
    (records, positions, d), p = a.shape, g.shape[2]
    of_p, of_d = 32 if p > 16 else 16, 32  # what a tensor core takes at least is 16
    across = math.ceil(d / of_d)
    with torch.cuda.device_of(a):
        _kernels().weighted_product[(math.ceil(p / of_p) * across,)](
            a, g, weights, out, records * positions, positions, d, p, across, ROWS=64, OF_P=of_p, OF_D=of_d
        )
