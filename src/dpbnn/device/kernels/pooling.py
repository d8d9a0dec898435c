"""Kernels of `dpbnn.models.pooling`: planes of ``height x width`` numbers, one after another.

A window's largest number is the first one of several that are equal, and NaN is larger than any; `place` says which of
the window's numbers it is, or NOWHERE where it is cut off at zero.
"""

import triton
import triton.language as tl

__all__ = ["NOWHERE", "largest", "spread"]

NOWHERE: tl.constexpr = tl.constexpr(255)


@triton.jit(do_not_specialize=["count"])
def largest(
    values, out, place, count,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, RECTIFY: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for a block of outputs, of which each plane has ``ROWS x COLUMNS``."""
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = own < count
    plane, rest = own // (ROWS * COLUMNS), own % (ROWS * COLUMNS)
    corner = plane * (HEIGHT * WIDTH) + rest // COLUMNS * STRIDE * WIDTH + rest % COLUMNS * STRIDE
    best = tl.full([BLOCK], float("-inf"), tl.float64 if values.dtype.element_ty == tl.float64 else tl.float32)
    found = tl.zeros([BLOCK], tl.int32)
    for row in tl.static_range(SIZE):
        for column in tl.static_range(SIZE):
            number = tl.load(values + corner + row * WIDTH + column, mask=inside, other=0.0).to(best.dtype)
            larger = (number > best) | (number != number)
            best = tl.where(larger, number, best)
            found = tl.where(larger, row * SIZE + column, found)
    if RECTIFY:
        found = tl.where(best <= 0, NOWHERE, found)
        best = tl.where(best <= 0, 0.0, best)
    tl.store(out + own, best.to(out.dtype.element_ty), mask=inside)
    if KEEP:
        tl.store(place + own, found.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["count"])
def spread(
    gradients, place, out, count,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for a block of inputs: each gathers the gradients of windows in which it was the largest."""
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = own < count
    plane, rest = own // (HEIGHT * WIDTH), own % (HEIGHT * WIDTH)
    total = tl.zeros([BLOCK], tl.float64 if gradients.dtype.element_ty == tl.float64 else tl.float32)
    for row in tl.static_range(SIZE):
        for column in tl.static_range(SIZE):
            top, left = rest // WIDTH - row, rest % WIDTH - column
            window = (top >= 0) & (left >= 0) & (top % STRIDE == 0) & (left % STRIDE == 0)
            window = window & (top // STRIDE < ROWS) & (left // STRIDE < COLUMNS) & inside
            where = plane * (ROWS * COLUMNS) + top // STRIDE * COLUMNS + left // STRIDE
            is_own = tl.load(place + where, mask=window, other=NOWHERE).to(tl.int32) == row * SIZE + column
            total += tl.load(gradients + where, mask=window & is_own, other=0.0).to(total.dtype)
    tl.store(out + own, total.to(out.dtype.element_ty), mask=inside)
