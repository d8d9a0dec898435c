"""Adding records up, so that rounding stays within its share of the clip norm.

One record more can round all partial sums of the others differently. Of n records of norm at most C, added k in a row
in a type with unit roundoff u (2^-24 for float32) and these pieces in float64, the sum is off by at most n k u C / 2,
so that one record moves it by n k u C more than it should. With the pieces added in the same type it is n^2 u C / k on
top of that. Both are kept below `SHARE`; where that takes too short pieces, everything is float64.

Products over several positions may cancel within a record, and so be much larger than what is left of them: float64.

Reference: Casacuberta et al. 2022 (arXiv 2207.10635) on sums whose sensitivity is underestimated.
"""

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from dpbnn.clipping import fused

__all__ = [
    "SHARE",
    "in_float64",
    "is_done_in_float64",
    "is_one_launch",
    "multiplies_fast_in_float64",
    "of_products",
    "of_rows",
    "type_for",
]

SHARE = 4e-3
"""How much of the clip norm rounding of sums may use up."""
SHORTEST, SHORTEST_OF_ROWS = 64, 16
"""Products, or rows, of fewer records at a time are not worth it: float64 is as fast."""
FLOAT64_NUMBERS = 2**23
"""Numbers that are held in float64 at a time: 64 MB."""
SMALL_PRODUCT = 2**25
"""Multiplications that take a GPU less time than the launches around a product of torch's."""
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities of GPUs that multiply in float64 about as fast as in float32."""


def _longest(together: float, dtype: torch.dtype, share: float = SHARE) -> int:
    """How many records may be added up in a row."""
    return int(min(together, share / (torch.finfo(dtype).eps / 2 * max(1, together))))


def type_for(dtype: torch.dtype, together: float) -> torch.dtype:
    """This type, if all records may be added up in a row in it; else float64."""
    return dtype if _longest(together, dtype) >= together else torch.float64


def of_rows(values: Tensor, factors: Tensor, together: int) -> Tensor:
    """``sum_i factors_i values_i``, for ``[records, ...]``."""
    longest = _longest(together, values.dtype)
    if longest >= min(together, len(values)):  # rows of zeros beside the records round nothing
        return (factors.to(values.dtype) @ values.unsqueeze(-1).flatten(1)).view(values.shape[1:])
    total = values.new_zeros(values.shape[1:], dtype=torch.float64)
    is_short = longest < SHORTEST_OF_ROWS
    dtype = torch.float64 if is_short else values.dtype
    at_a_time = max(1, FLOAT64_NUMBERS // max(1, values[0].numel())) if is_short else longest
    for some, own in _split(at_a_time, values, factors):
        total += torch.tensordot(own.to(dtype), some.to(dtype), dims=1)
    return total.to(values.dtype)


def of_products(inputs: Tensor, output_gradients: Tensor, factors: Tensor, together: float, out: Tensor) -> None:
    """``sum_i factors_i sum_t output_gradients_it inputs_it'``, for ``[records, groups, positions, ...]``.

    `together` is infinite where there are several positions; `out` is ``[groups, p, d]`` and is written over.
    """
    if is_one_launch(inputs, output_gradients):
        fused.weighted_product(inputs[:, 0], output_gradients[:, 0], factors, out[0])
        return
    dtype = inputs.dtype
    at_a_time = len(inputs) if type_for(dtype, together) == dtype else _longest(together, dtype, SHARE / 2)
    is_coarse = is_done_in_float64(inputs) or at_a_time < SHORTEST < len(inputs) or together > at_a_time**2
    if is_coarse and dtype != torch.float64:
        out.copy_(in_float64(inputs, output_gradients, factors))
        return
    for number, (a, g, own) in enumerate(_split(at_a_time, inputs, output_gradients, factors)):
        _add_to(out, a, _scaled(g, own, dtype), is_first=number == 0)


def is_one_launch(inputs: Tensor, output_gradients: Tensor) -> bool:
    """Whether their product is so small that one launch does all, which leaves out what has the factor zero."""
    is_small = inputs.shape[1] == 1 and 0 < inputs.numel() * output_gradients.shape[3] <= SMALL_PRODUCT
    return is_small and is_done_in_float64(inputs) and fused.is_used_for(output_gradients)


def is_done_in_float64(inputs: Tensor) -> bool:
    """Whether products of these inputs are added up in float64, however few they are."""
    return inputs.dtype == torch.float32 and inputs.is_cuda and multiplies_fast_in_float64(inputs.device)


@cache
def multiplies_fast_in_float64(device: torch.device) -> bool:
    """Whether a GPU multiplies in float64 about as fast as in float32; others are many times slower."""
    return torch.cuda.get_device_capability(device) in FAST_FLOAT64


def in_float64(inputs: Tensor, output_gradients: Tensor, factors: Tensor) -> Tensor:
    """The same products in float64: a few records at a time, where they would take much memory."""
    total = inputs.new_empty(inputs.shape[1], output_gradients.shape[3], inputs.shape[3], dtype=torch.float64)
    at_a_time = max(1, FLOAT64_NUMBERS // max(1, inputs[:1].numel() + output_gradients[:1].numel()))
    for number, (a, g, own) in enumerate(_split(at_a_time, inputs, output_gradients, factors)):
        _add_to(total, a.double(), _scaled(g, own, torch.float64), is_first=number == 0)
    return total


def _split(at_a_time: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    if at_a_time >= len(tensors[0]):
        return (tensors,)
    return zip(*(values.split(max(1, at_a_time)) for values in tensors), strict=True)


def _scaled(output_gradients: Tensor, factors: Tensor, dtype: torch.dtype) -> Tensor:
    if fused.is_used_for(output_gradients):
        return fused.scaled(output_gradients, factors, dtype)
    return output_gradients.to(dtype) * factors.to(dtype)[:, None, None, None]


def _add_to(total: Tensor, inputs: Tensor, scaled: Tensor, is_first: bool) -> None:
    """All rows of a group in one product."""
    beta = 0 if is_first else 1
    if len(total) == 1:
        a, g = (values.reshape(-1, values.shape[3]) for values in (inputs, scaled))
        torch.addmm(total[0], g.mT, a, beta=beta, out=total[0])
    else:
        a, g = (values.transpose(0, 1).reshape(values.shape[1], -1, values.shape[3]) for values in (inputs, scaled))
        torch.baddbmm(total, g.mT, a, beta=beta, out=total)
