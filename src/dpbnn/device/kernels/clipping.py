"""Kernels of `dpbnn.clipping.fused`, each program on other numbers."""

import triton
import triton.language as tl

__all__ = ["factors", "finite", "products", "scaled", "squares", "weighted_product", "weighted_sum"]

COUNTS = ["terms", "records"]
"""What may change from part to part: no other kernel is compiled for that, which a capture could not do."""


@triton.jit
def squares(values, out, length, pieces, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    """One program adds up one piece of one row."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(piece * PIECE, min(length, (piece + 1) * PIECE), BLOCK):
        columns = start + tl.arange(0, BLOCK)
        numbers = tl.load(values + row * length + columns, mask=columns < length, other=0.0).to(tl.float64)
        total += numbers * numbers
    tl.store(out + row * pieces + piece, tl.sum(total))


@triton.jit
def products(inputs, output_gradients, out, d, p, smallest, BLOCK: tl.constexpr):
    """One program for each record."""
    row = tl.program_id(0).to(tl.int64)
    of_inputs = tl.zeros([BLOCK], tl.float64)
    for start in range(0, d, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        numbers = tl.load(inputs + row * d + columns, mask=columns < d, other=0.0).to(tl.float64)
        of_inputs += numbers * numbers
    of_outputs = tl.zeros([BLOCK], tl.float64)
    for start in range(0, p, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        numbers = tl.load(output_gradients + row * p + columns, mask=columns < p, other=0.0).to(tl.float64)
        of_outputs += numbers * numbers
    of_a, of_g = tl.sum(of_inputs), tl.sum(of_outputs)
    least = tl.full([], 1.0, tl.float64) * smallest * smallest
    of_a, of_g = tl.where(of_a < least, least, of_a), tl.where(of_g < least, least, of_g)  # NaN stays NaN
    tl.store(out + row, of_a * of_g)


@triton.jit(do_not_specialize=COUNTS)
def factors(
    squared_norms, present, out, terms, records, largest, limit, limit_rest, offset, offset_rest,
    HAS_PRESENT: tl.constexpr, CLIPS: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for many records."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < records
    total = tl.zeros([BLOCK], tl.float64)
    for term in range(terms):
        total += tl.load(squared_norms + term * records + rows, mask=inside, other=0.0)
    one = tl.full([BLOCK], 1.0, tl.float64)
    kept = total <= one * largest * largest
    bound, shift = one * limit + limit_rest, one * offset + offset_rest
    if HAS_PRESENT:
        kept = kept & tl.load(present + rows, mask=inside, other=0).to(tl.int1)
    factor = one
    if CLIPS:
        norm = tl.sqrt(total)
        factor = bound / (norm + shift if ADDS else tl.maximum(norm, bound))
    tl.store(out + rows, tl.where(kept, factor, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def finite(values, out, count, BLOCK: tl.constexpr):
    """One program for a block of numbers."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(values + places, mask=places < count, other=0.0).to(tl.float64)
    tl.store(out + places, tl.where(tl.abs(numbers) < float("inf"), numbers, 0.0), mask=places < count)


@triton.jit
def scaled(values, weights, out, length, BLOCK: tl.constexpr):
    """One program for a block of one record."""
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weights + row)
    numbers = tl.load(values + row * length + columns, mask=columns < length, other=0.0)
    result = tl.where(weight != 0, numbers.to(tl.float64) * weight, 0.0).to(out.dtype.element_ty)
    tl.store(out + row * length + columns, result, mask=columns < length)


@triton.jit(do_not_specialize=COUNTS)
def weighted_sum(values, weights, out, records, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One program for some columns of all records."""
    columns = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float64)
    for start in range(0, records, ROWS):
        rows = start + tl.arange(0, ROWS)
        weight = tl.load(weights + rows, mask=rows < records, other=0.0)
        inside = (rows < records)[:, None] & (columns < length)[None, :]
        numbers = tl.load(values + rows.to(tl.int64)[:, None] * length + columns[None, :], mask=inside, other=0.0)
        total += tl.where((weight != 0)[:, None], numbers.to(tl.float64) * weight[:, None], 0.0)
    tl.store(out + columns, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=columns < length)


@triton.jit(do_not_specialize=["rows"])
def weighted_product(
    inputs, output_gradients, weights, out, rows, positions, d, p, across,
    ROWS: tl.constexpr, OF_P: tl.constexpr, OF_D: tl.constexpr,
):  # fmt: skip
    """One program for a tile of ``[p, d]``, `across` of them side by side, from all positions of all records."""
    of_p = tl.program_id(0) // across * OF_P + tl.arange(0, OF_P)
    of_d = tl.program_id(0) % across * OF_D + tl.arange(0, OF_D)
    total = tl.zeros([OF_P, OF_D], tl.float64)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        weight = tl.load(weights + row // positions, mask=row < rows, other=0.0).to(tl.float64)
        inside = (of_p < p)[:, None] & (weight != 0)[None, :]
        g = tl.load(output_gradients + row[None, :] * p + of_p[:, None], mask=inside, other=0.0).to(tl.float64)
        inside = (weight != 0)[:, None] & (of_d < d)[None, :]
        a = tl.load(inputs + row[:, None] * d + of_d[None, :], mask=inside, other=0.0).to(tl.float64)
        total = tl.dot(g * weight[None, :], a, acc=total, out_dtype=tl.float64)
    inside = (of_p < p)[:, None] & (of_d < d)[None, :]
    tl.store(out + of_p[:, None] * d + of_d[None, :], total.to(out.dtype.element_ty), mask=inside)
