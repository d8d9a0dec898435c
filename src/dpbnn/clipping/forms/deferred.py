"""A linear layer on many positions: its norms are taken at once, its sum once the clip factors are known.

Until then it keeps the layer's input and output gradient as they came, not widened to float32 nor multiplied out. The
norms come from per-record gradients that are written out a few records at a time, or from Gram matrices, whichever
costs less.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpbnn.clipping.forms.per_record import (
    ANYWHERE,
    SMALLEST_NORM,
    Dense,
    Destination,
    Outer,
    PerRecordGradient,
    least_of_terms,
)
from dpbnn.clipping.objective import wide

__all__ = ["Deferred"]

AT_A_TIME, AT_A_TIME_ON_CUDA = 2**20, 2**25
"""Numbers of per-record gradients that are written out at a time: a CPU's cache holds them; they keep a GPU busy."""

MOST_ON_CUDA = 2**32
"""Bytes up to which a layer's gradients are written out on a GPU."""
SMALL = 2**22
"""Bytes of one layer that are not worth saving."""
LONGEST_FLOAT32_PRODUCT = 100
"""Positions that may be added up in float32 to measure a norm; the sum itself is taken in float64."""
PRODUCT_SHARE = 3.2e-4
"""The share of the clip norm that rounding of these products may use up. T positions are off by T 2^-24 of their norms
added up, so a record whose terms cancel counts as ``T 2^-24 / PRODUCT_SHARE`` of these at least."""


@dataclass(frozen=True)
class Deferred(PerRecordGradient):
    """``sum_t output_gradients_t inputs_t'`` for each record: ``[records, 1, positions, ...]`` in any precision."""

    inputs: Tensor
    output_gradients: Tensor
    shape: torch.Size
    squares: Tensor
    must_be_finite: bool = False

    @staticmethod
    def of(inputs: Tensor, output_gradients: Tensor, shape: torch.Size) -> "Deferred":
        """Take the norms now; both tensors have the records first and the features last."""
        a, g = (values.reshape(len(values), 1, -1, values.shape[-1]) for values in (inputs, output_gradients))
        numbers = max(shape.numel(), a[0].numel() + g[0].numel())
        at_a_time = max(1, (AT_A_TIME_ON_CUDA if a.is_cuda else AT_A_TIME) // numbers)
        parts = zip(a.split(at_a_time), g.split(at_a_time), strict=True)
        squares = torch.cat([_squares(Outer(wide(one), wide(other), shape)) for one, other in parts])
        return Deferred(a, g, shape, squares)

    @staticmethod
    def keeps_less(inputs: Tensor, output_gradients: Tensor, shape: torch.Size) -> bool:
        """Whether this saves so much memory, compared with the rule, that a second product is worth it."""
        if output_gradients.dim() == 2:
            return False
        positions = output_gradients[0, ..., 0].numel()
        if inputs.is_cuda:  # written out is fast there, and batches are taken in parts that have room for it
            return positions > 1 and 4 * len(inputs) * shape.numel() > MOST_ON_CUDA
        if min(inputs.element_size(), output_gradients.element_size()) < 4:
            return positions > 1
        kept, written_out = inputs.nbytes + output_gradients.nbytes, 4 * len(inputs) * shape.numel()
        is_written_out = Outer.is_cheaper_written_out(positions, shape[1], shape[0], len(inputs), inputs.device)
        return is_written_out and written_out > max(kept, SMALL)

    def products(self) -> Outer:
        """The products, in float32 or wider."""
        outer = Outer(wide(self.inputs), wide(self.output_gradients), self.shape)
        return outer.finite() if self.must_be_finite else outer

    @property
    def terms(self) -> int:
        return self.inputs.shape[2]

    def squared_norms(self) -> Tensor:
        return self.squares

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        return self.products().weighted_sum(factors, into)

    def finite(self) -> "Deferred":
        return replace(self, must_be_finite=True)

    def dense(self) -> Dense:
        return self.products().dense()


def _squares(outer: Outer) -> Tensor:
    """Norms of gradients that are written out, or from Gram matrices; never less than rounding could leave."""
    if not Outer.is_cheaper_written_out(
        outer.inputs.shape[2], outer.shape[1], outer.shape[0], len(outer.inputs), outer.inputs.device
    ):
        return outer.squared_norms()
    a, g = (norms.clamp_min(SMALLEST_NORM) for norms in outer.norms)
    terms = (a * g).sum(dim=(1, 2))
    # The norm here and the sum later are both rounded per term.
    least, positions = 2 * least_of_terms(outer.inputs.dtype), outer.inputs.shape[2]
    if positions > LONGEST_FLOAT32_PRODUCT:
        outer = Outer(outer.inputs.double(), outer.output_gradients.double(), outer.shape)
    else:
        least = max(least, positions * 2**-24 / PRODUCT_SHARE)
    return torch.maximum(outer.dense().squared_norms(), (least * terms).square())
