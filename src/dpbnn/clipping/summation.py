"""Sums over records, rounded by no more than their share of the clip norm.

One record more can change how all partial sums of the others are rounded. Add n records of norm at most C, k in a row
in a type of unit roundoff u (2^-24 for float32), and the pieces in float64. The sum is off by at most n k u C / 2, so
one record moves it by up to n k u C beyond its own gradient. Pieces that are added in the same type move it by another
n^2 u C / k. Each is kept below `SHARE` of C; where that needs pieces that are too short, all is float64.

The products of a record at several positions may be much larger than their sum: they are added in float64. So are the
parts of a batch. Where a plan's batches may have more than 4096 records, everything stays float64 up to the noise. In
parts of k <= 4096 records, with u = 2^-53, one record then moves the sum beyond its own gradient by at most, in clip
norms:

    Dense, SparseRows, Outer on one position, Joint of one draw    n k u
    Outer and Deferred on T positions                              n T (k + 2 r m) u, for m records at a time
    Tied on T positions, Joint of N draws                          the same for T + 1, and for 2 N + 1
    Reordered                                                      the same as the form that it reorders
    p parts                                                        n p u on top of that

r is `MOST_CANCELLING`: partial sums within a record reach r clip norms. m is the largest number that keeps the bound
below half of `SHARE`. If there is none, or p is too large, a plan is refused before its first step
(`dpbnn.clipping.check.exactness`). A step is never refused: that could tell how many records it has.

Reference: Casacuberta et al. 2022 (arXiv 2207.10635) on sums whose sensitivity is underestimated.
"""

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from dpbnn.clipping import fused
from dpbnn.errors import DpbnnError

__all__ = [
    "LARGEST_PART",
    "MOST_CANCELLING",
    "SHARE",
    "in_float64",
    "is_done_in_float64",
    "is_one_launch",
    "multiplies_fast_in_float64",
    "of_products",
    "of_rows",
    "refuse_inexact",
    "slices",
    "type_for",
]

SHARE = 4e-3
"""The share of the clip norm that rounding of sums may use up."""
MOST_CANCELLING = 420
"""The most clip norms that the norms of a clipped record's terms (positions, draws, uses) add up to: whatever cancels,
the record counts as that share of them (`dpbnn.clipping.forms.per_record.least_of_terms`)."""
LARGEST_PART = 4096
"""The most records in a part. Sums over more of them, or over several parts, are float64: float32 would round by more
than the room for rounding."""
SHORTEST, SHORTEST_OF_ROWS = 64, 16
"""For fewer records at a time, in products and in sums of rows, float64 is as fast."""
FLOAT64_NUMBERS = 2**23
"""The most numbers that are held in float64 at a time: 64 MB."""
SMALL_PRODUCT = 2**25
"""A GPU does so many multiplications in less time than torch's launches take."""
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities of GPUs that multiply in float64 about as fast as in float32."""


def _longest(largest_batch: float, dtype: torch.dtype, share: float = SHARE) -> int:
    """How many records of such a batch may be added in a row for rounding to stay below `share`."""
    if largest_batch > LARGEST_PART and dtype != torch.float64:
        return 0
    return int(min(largest_batch, share / (torch.finfo(dtype).eps / 2 * max(1, largest_batch))))


def type_for(dtype: torch.dtype, largest_batch: float) -> torch.dtype:
    """This type, if all records may be added up in a row in it; else float64."""
    return dtype if _longest(largest_batch, dtype) >= largest_batch else torch.float64


def refuse_inexact(records: int, part: int, terms: int) -> None:
    """Refuse batches of so many records, in parts of this size, if float64 is too coarse for their sum.

    `terms` is how many terms of one record may cancel.
    """
    parts = math.ceil(records / part)
    if parts > 1 and records * parts * torch.finfo(torch.float64).eps / 2 > SHARE / 2:
        raise DpbnnError(
            f"The sum of a batch must be exact to 0.2 % of the clip norm, got batches of up to {records:,} records in "
            f"{parts:,} parts; raise micro_batch_size, or leave it out."
        )
    if terms > 1 and _exact_at_a_time(part, terms, records) < 1:
        raise DpbnnError(
            f"The sum of a batch must be exact to 0.2 % of the clip norm, got batches of up to {records:,} records "
            f"with {terms:,} positions each; lower the batch size, or shorten the records."
        )


def slices(records: int, terms: int, largest_batch: int) -> list[slice]:
    """The records to add at a time in float64, if each has `terms` terms that may cancel."""
    at_a_time = _at_a_time(records, terms, largest_batch)
    return [slice(start, start + at_a_time) for start in range(0, max(1, records), at_a_time)]


def _at_a_time(records: int, terms: int, largest_batch: int) -> int:
    """The m of the module's docstring, for any part of a batch."""
    return max(1, records if terms <= 1 else _exact_at_a_time(records, terms, largest_batch))


def _exact_at_a_time(records: int, terms: int, largest_batch: int) -> int:
    """The m for which ``n T (k + 2 r m) u`` stays within its share; less than one if there is none."""
    allowed = SHARE / 2 / (torch.finfo(torch.float64).eps / 2 * max(1, largest_batch) * terms)
    return math.floor((allowed - min(LARGEST_PART, max(records, largest_batch))) / (2 * MOST_CANCELLING))


def of_rows(values: Tensor, factors: Tensor, largest_batch: int, dtype: torch.dtype) -> Tensor:
    """``sum_i factors_i values_i``, for ``[records, ...]``, in this type."""
    longest = _longest(largest_batch, values.dtype)
    if longest >= min(largest_batch, len(values)):  # padding rows are zero and add no rounding error
        return (factors.to(values.dtype) @ values.unsqueeze(-1).flatten(1)).view(values.shape[1:]).to(dtype)
    total = values.new_zeros(values.shape[1:], dtype=torch.float64)
    is_short = longest < SHORTEST_OF_ROWS
    piece = torch.float64 if is_short else values.dtype
    at_a_time = max(1, FLOAT64_NUMBERS // max(1, values[0].numel())) if is_short else longest
    for rows, weights in _split(at_a_time, values, factors):
        total += torch.tensordot(weights.to(piece), rows.to(piece), dims=1)
    return total.to(dtype)


def of_products(inputs: Tensor, output_gradients: Tensor, factors: Tensor, largest_batch: int, out: Tensor) -> None:
    """``sum_i factors_i sum_t output_gradients_it inputs_it'``, for ``[records, groups, positions, ...]``.

    `out` is ``[groups, p, d]``, in the inputs' type or in float64, and is written over.
    """
    dtype, positions = inputs.dtype, inputs.shape[2]
    if is_one_launch(inputs, output_gradients):
        _in_launches(inputs[:, 0], output_gradients[:, 0], factors, largest_batch, out[0])
        return
    count = largest_batch if positions == 1 else math.inf
    # Half of SHARE for the pieces, half for adding them: n k u <= SHARE / 2 and n^2 u / k <= SHARE / 2, so n <= k^2.
    at_a_time = len(inputs) if type_for(dtype, count) == dtype else _longest(count, dtype, SHARE / 2)
    is_coarse = is_done_in_float64(inputs) or at_a_time < SHORTEST < len(inputs) or count > at_a_time**2
    if is_coarse and dtype != torch.float64:
        in_float64(inputs, output_gradients, factors, largest_batch, out)
        return
    if dtype == torch.float64:
        at_a_time = _at_a_time(len(inputs), positions, largest_batch)
    total = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
    _add_up(inputs, output_gradients, factors, at_a_time, total)
    _copy(total, out)


def _in_launches(inputs: Tensor, output_gradients: Tensor, factors: Tensor, largest_batch: int, out: Tensor) -> None:
    """One launch, unless the terms of so many records might cancel."""
    at_a_time = _at_a_time(len(inputs), inputs.shape[1], largest_batch)
    if at_a_time >= len(inputs):
        fused.weighted_product(inputs, output_gradients, factors, out)
        return
    total = torch.zeros_like(out, dtype=torch.float64)
    part = torch.empty_like(total)
    for a, g, weights in _split(at_a_time, inputs, output_gradients, factors):
        fused.weighted_product(a, g, weights, part)
        total += part
    out.copy_(total)


def is_one_launch(inputs: Tensor, output_gradients: Tensor) -> bool:
    """Whether one launch does the whole product, which is small; it leaves out records with the factor zero."""
    is_small = inputs.shape[1] == 1 and 0 < inputs.numel() * output_gradients.shape[3] <= SMALL_PRODUCT
    return is_small and is_done_in_float64(inputs) and fused.is_used_for(output_gradients)


def is_done_in_float64(inputs: Tensor) -> bool:
    """Whether products of these inputs are added up in float64, however few they are."""
    return inputs.dtype == torch.float32 and inputs.is_cuda and multiplies_fast_in_float64(inputs.device)


@cache
def multiplies_fast_in_float64(device: torch.device) -> bool:
    """Whether a GPU multiplies in float64 about as fast as in float32; others are many times slower."""
    return torch.cuda.get_device_capability(device) in FAST_FLOAT64


def in_float64(
    inputs: Tensor, output_gradients: Tensor, factors: Tensor, largest_batch: int, out: Tensor | None = None
) -> Tensor:
    """`of_products` in float64: a few records at a time, where they would take much memory or might cancel."""
    shape = inputs.shape[1], output_gradients.shape[3], inputs.shape[3]
    has_place = out is not None and out.dtype == torch.float64
    total = out if out is not None and has_place else inputs.new_empty(shape, dtype=torch.float64)
    that_fit = FLOAT64_NUMBERS // max(1, inputs[:1].numel() + output_gradients[:1].numel())
    at_a_time = min(that_fit, _at_a_time(len(inputs), inputs.shape[2], largest_batch))
    _add_up(inputs, output_gradients, factors, at_a_time, total)
    return total if out is None else _copy(total, out)


def _add_up(inputs: Tensor, output_gradients: Tensor, factors: Tensor, at_a_time: int, total: Tensor) -> None:
    """Write the sum over the total, in the total's type."""
    for number, (a, g, weights) in enumerate(_split(at_a_time, inputs, output_gradients, factors)):
        _add_to(total, a.to(total.dtype), _scaled(g, weights, total.dtype), is_first=number == 0)


def _copy(values: Tensor, out: Tensor) -> Tensor:
    """The values in `out`, where they may be already."""
    return out if values is out else out.copy_(values)


def _split(at_a_time: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    if at_a_time >= len(tensors[0]):
        return (tensors,)
    return zip(*(values.split(max(1, at_a_time)) for values in tensors), strict=True)


def _scaled(output_gradients: Tensor, factors: Tensor, dtype: torch.dtype) -> Tensor:
    if fused.is_used_for(output_gradients):
        return fused.scaled(output_gradients, factors, dtype)
    return output_gradients.to(dtype) * factors.to(dtype)[:, None, None, None]


def _add_to(total: Tensor, inputs: Tensor, scaled: Tensor, is_first: bool) -> None:
    """Add all rows of a group by one product."""
    beta = 0 if is_first else 1
    if len(total) == 1:
        a, g = (values.reshape(-1, values.shape[3]) for values in (inputs, scaled))
        torch.addmm(total[0], g.mT, a, beta=beta, out=total[0])
    else:
        a, g = (values.transpose(0, 1).reshape(values.shape[1], -1, values.shape[3]) for values in (inputs, scaled))
        torch.baddbmm(total, g.mT, a, beta=beta, out=total)
