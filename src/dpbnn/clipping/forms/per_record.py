"""Gradients of every record of a batch for one parameter, in the cheapest form that yields exact norms.

* `Dense`: written out, ``[records, *parameter]``.
* `Outer`: products of layer inputs and output gradients, ``sum_t g_t a_t'``, where it is cheaper to write nothing out
  (ghost norm).
* `SparseRows`: some rows of the parameter alone, as in an embedding.
* `Reordered`: one of these in another order of the parameter's dimensions, in which it was cheaper to compute.

Guarantees:
    The norm that is clipped is the norm of what is summed, whatever cancels in it: `Dense` and `SparseRows` take
        the norm of the very numbers that they sum, and `Outer` never reports less than what rounding could leave.
    Rounding of the sum stays within its share of the clip norm (`dpbnn.clipping.summation`).

References: Goodfellow 2015 (arXiv 1510.01799) for one position; Li et al. 2022 (arXiv 2110.05679) for many;
Bu et al. 2023 (arXiv 2210.00038) for choosing between them by cost.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from dpbnn.clipping import fused, summation

__all__ = [
    "ANYWHERE",
    "LONGEST_FLOAT32_SUM",
    "Dense",
    "Destination",
    "Outer",
    "PerRecordGradient",
    "Reordered",
    "SparseRows",
    "least_of_terms",
    "row_norms",
]

ROUNDING_SHARE = 5e-5
"""The share of the clip norm that rounding of a product over many positions may use up."""
LONGEST_FLOAT32_SUM = 4096
FLOAT64_NUMBERS = 2**23
"""The most float64 numbers of Gram matrices and their factors at a time: 64 MB."""
FEW_ON_CUDA = 2**23
"""A GPU writes so many numbers in less time than the launches for a Gram matrix take."""
SMALLEST_NORM = 1e-8
"""The norms of a product's factors count at least this much: a smaller one could hide a factor that is huge, and
clipped numbers that are too small for float32 would be rounded by more than the room for rounding."""


@dataclass(frozen=True)
class Destination:
    """Where a sum is wanted: in this memory, else in this type, else in that of the gradients.

    `largest_batch` is the most records that all parts of the batch can have; None: this part is all. Where it is large,
    what is wanted in float64 is not rounded to less on its way.
    """

    out: Tensor | None = None
    dtype: torch.dtype | None = None
    largest_batch: int | None = None

    def type_for(self, values: Tensor) -> torch.dtype:
        """The type of the sum of these values."""
        return self.dtype or values.dtype if self.out is None else self.out.dtype

    def anywhere(self) -> "Destination":
        """In the same type, in any memory."""
        return replace(self, out=None, dtype=self.dtype if self.out is None else self.out.dtype)

    def place(self, values: Tensor) -> Tensor:
        """The values, where they are wanted."""
        return values if self.out is None else self.out.copy_(values)


ANYWHERE = Destination()


class PerRecordGradient(ABC):
    """The gradients of all records of a batch with respect to one parameter.

    A form extends this class and no other form: some steps compute with the fields of a form, not by its methods.
    """

    def __init_subclass__(cls) -> None:
        if PerRecordGradient not in cls.__bases__:
            raise TypeError(f"{cls.__name__} must extend PerRecordGradient itself, got {cls.__bases__[0].__name__}.")

    @property
    def terms(self) -> int:
        """How many terms of one record may cancel as they are added up."""
        return 1

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """``|g_i|^2`` for each record i, in float64."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        """``sum_i factors_i g_i``, in the parameter's shape; records with factor zero must hold finite numbers."""

    @abstractmethod
    def finite(self) -> "PerRecordGradient":
        """The same with zeros in the place of what is not finite: for records that get the factor zero."""

    @abstractmethod
    def dense(self) -> "Dense":
        """The same gradients, written out."""


@dataclass(frozen=True)
class Dense(PerRecordGradient):
    """One gradient per record, written out; `norms` in float64, where they are known already."""

    values: Tensor
    norms: Tensor | None = None

    def squared_norms(self) -> Tensor:
        rows = self.values.unsqueeze(-1).flatten(1)
        if fused.is_used_for(rows):
            return fused.squares(rows)
        return (row_norms(rows) if self.norms is None else self.norms).square()

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        if fused.is_used_for(self.values):
            return fused.weighted_sum(self.values, factors, into.out, into.dtype)
        largest_batch = into.largest_batch or len(factors)
        return into.place(summation.of_rows(self.values, factors, largest_batch, into.type_for(self.values)))

    def finite(self) -> "Dense":
        return self if fused.is_used_for(self.values) else Dense(_finite(self.values))

    def dense(self) -> "Dense":
        return self


@dataclass(frozen=True)
class Outer(PerRecordGradient):
    """``sum_t output_gradients_t inputs_t'`` for each record and group.

    `inputs` is ``[records, groups, positions, d]``, `output_gradients` is ``[records, groups, positions, p]``;
    the parameter of shape `shape` has ``groups * p * d`` elements.
    """

    inputs: Tensor
    output_gradients: Tensor
    shape: torch.Size

    @staticmethod
    def is_cheaper_written_out(positions: int, d: int, p: int, records: int, device: torch.device) -> bool:
        """Whether writing the gradients out costs less than two Gram matrices in float64.

        On a CPU by operations, of which those in float64 count twice. On a GPU what is written out costs the way to
        its memory and back alone: the sum needs no second product then.
        """
        if device.type == "cuda":
            many = records * p * d > FEW_ON_CUDA
            return positions > 1 and not (many and positions**2 * (p + d) < _gram_operations_per_number(device) * p * d)
        return positions > 1 and 2 * positions * (p + d) > p * d

    @cached_property
    def norms(self) -> tuple[Tensor, Tensor]:
        """Of the inputs and of the output gradients at each position."""
        return row_norms(self.inputs), row_norms(self.output_gradients)

    @property
    def terms(self) -> int:
        return self.inputs.shape[2]

    def plus(self, other: "Outer") -> "Outer":
        """The sum of both: the positions of both."""
        inputs = torch.cat([self.inputs, other.inputs], dim=2)
        return Outer(inputs, torch.cat([self.output_gradients, other.output_gradients], dim=2), self.shape)

    def squared_norms(self) -> Tensor:
        """One position: ``|a|^2 |g|^2``. Several: ``<A A', G G'>`` in float64 (in float32 it cancels)."""
        if self.inputs.shape[1:3] == (1, 1) and fused.is_used_for(self.inputs):
            return fused.products(self.inputs.flatten(1), self.output_gradients.flatten(1), SMALLEST_NORM)
        term_norms = self.norms[0].clamp_min(SMALLEST_NORM) * self.norms[1].clamp_min(SMALLEST_NORM)
        if self.inputs.shape[1:3] == (1, 1):
            return term_norms.flatten().square()
        if self.inputs.shape[2] == 1:
            return term_norms.square().sum(dim=(1, 2))
        # The sum below is rounded per term: a record whose terms cancel almost wholly counts by its terms.
        least = least_of_terms(self.inputs.dtype)
        return torch.maximum(self._gram_products(), (least * term_norms.sum(dim=(1, 2))).square())

    def _gram_products(self) -> Tensor:
        """``<A A', G G'>`` for as many records at a time as `FLOAT64_NUMBERS` allows."""
        groups, positions, d = self.inputs.shape[1:]
        numbers = groups * positions * (d + self.output_gradients.shape[3] + 3 * positions)
        at_a_time = max(1, FLOAT64_NUMBERS // numbers)
        parts = zip(self.inputs.split(at_a_time), self.output_gradients.split(at_a_time), strict=True)
        pairs = ((a.double(), g.double()) for a, g in parts)
        return torch.cat([((a @ a.mT) * (g @ g.mT)).sum(dim=(1, 2, 3)) for a, g in pairs])

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        shape = self.inputs.shape[1], self.output_gradients.shape[3], self.inputs.shape[3]
        out, wanted = into.out, into.type_for(self.output_gradients)
        added_in = torch.float64 if wanted == torch.float64 else self.inputs.dtype
        has_place = out is not None and shape[0] == 1 and out.dtype == added_in and out.is_contiguous()
        total = out.view(shape) if out is not None and has_place else self.inputs.new_empty(shape, dtype=added_in)
        summation.of_products(self.inputs, self.output_gradients, factors, into.largest_batch or len(factors), total)
        if out is None:
            return total.to(wanted).view(self.shape)
        return out if has_place else into.place(total.view(self.shape))

    def finite(self) -> "Outer":
        return self if summation.is_one_launch(self.inputs, self.output_gradients) else self.cleaned()

    def cleaned(self) -> "Outer":
        """As `finite`, also where `weighted_sum` leaves out records with the factor zero by itself."""
        is_skipped = fused.is_used_for(self.output_gradients)
        gradients = self.output_gradients if is_skipped else _finite(self.output_gradients)
        is_wide = summation.is_done_in_float64(self.inputs) and 0 < self.inputs.numel() < FLOAT64_NUMBERS
        inputs = fused.finite(self.inputs) if is_skipped and is_wide else _finite(self.inputs)
        return Outer(inputs, gradients, self.shape)

    def dense(self) -> Dense:
        return Dense((self.output_gradients.mT @ self.inputs.to(self.output_gradients.dtype)).reshape(-1, *self.shape))


@dataclass(frozen=True)
class SparseRows(PerRecordGradient):
    """Gradients that touch only some rows of a ``[rows, width]`` parameter.

    Entry k adds ``values[k]`` to row ``rows[k]`` of record ``records[k]``; no (record, row) pair occurs twice, but
    for entries of zeros: how many pairs there are is not asked, since a GPU would have to wait for the answer.
    """

    records: Tensor
    rows: Tensor
    values: Tensor
    num_records: int
    shape: torch.Size

    @staticmethod
    def merged(records: Tensor, rows: Tensor, values: Tensor, num_records: int, shape: torch.Size) -> "SparseRows":
        """Add up the entries that belong to the same record and row."""
        pairs, order = torch.sort(records * shape[0] + rows)
        position = torch.zeros_like(pairs)
        position[1:] = (pairs[1:] != pairs[:-1]).cumsum(dim=0)
        pairs = torch.zeros_like(pairs).scatter_(0, position, pairs)
        totals = torch.zeros_like(values).index_add_(0, position, values[order])
        return SparseRows(pairs // shape[0], pairs % shape[0], totals, num_records, shape)

    def plus(self, other: "SparseRows") -> "SparseRows":
        """The sum of both."""
        records, rows = torch.cat([self.records, other.records]), torch.cat([self.rows, other.rows])
        return SparseRows.merged(records, rows, torch.cat([self.values, other.values]), self.num_records, self.shape)

    def squared_norms(self) -> Tensor:
        squares = row_norms(self.values).square()
        return squares.new_zeros(self.num_records).index_add_(0, self.records, squares)

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        added_in = summation.type_for(self.values.dtype, into.largest_batch or len(factors))
        return into.place(self.total(factors, added_in).to(into.type_for(self.values)))

    def total(self, factors: Tensor, dtype: torch.dtype) -> Tensor:
        """``sum_i factors_i g_i``, added up in this type."""
        scaled = self.values.to(dtype) * factors.to(dtype)[self.records, None]
        return self.values.new_zeros(self.shape, dtype=dtype).index_add_(0, self.rows, scaled)

    def finite(self) -> "SparseRows":
        return SparseRows(self.records, self.rows, _finite(self.values), self.num_records, self.shape)

    def dense(self) -> Dense:
        values = self.values.new_zeros(self.num_records * self.shape[0], self.shape[1])
        values.index_add_(0, self.records * self.shape[0] + self.rows, self.values)
        return Dense(values.view(self.num_records, *self.shape))


@dataclass(frozen=True)
class Reordered(PerRecordGradient):
    """Gradients whose dimensions, put into the order `axes`, are those of a parameter of shape `shape`."""

    values: PerRecordGradient
    axes: tuple[int, ...]
    shape: torch.Size

    @property
    def terms(self) -> int:
        return self.values.terms

    def squared_norms(self) -> Tensor:
        return self.values.squared_norms()

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        total = self.values.weighted_sum(factors, into.anywhere())
        return into.place(total.permute(self.axes).reshape(self.shape))

    def finite(self) -> "Reordered":
        return Reordered(self.values.finite(), self.axes, self.shape)

    def dense(self) -> Dense:
        values = self.values.dense().values
        return Dense(values.permute(0, *(1 + axis for axis in self.axes)).reshape(len(values), *self.shape))


def row_norms(values: Tensor) -> Tensor:
    """Norms over the last dimension in float64: short sums in the values' own type, so that nothing is copied.

    A long row is added up in pieces: float32 would lose more than the room for rounding.
    """
    if fused.is_used_for(values):
        return fused.squares(values.reshape(-1, values.shape[-1])).sqrt().view(values.shape[:-1])
    length = values.shape[-1]
    if length <= LONGEST_FLOAT32_SUM:
        return torch.linalg.vector_norm(values, dim=-1).double()
    whole = length - length % LONGEST_FLOAT32_SUM
    pieces = row_norms(values[..., :whole].unflatten(-1, (-1, LONGEST_FLOAT32_SUM)))
    norms: Tensor = torch.linalg.vector_norm(pieces, dim=-1)
    return norms if whole == length else torch.hypot(norms, row_norms(values[..., whole:]))


@cache
def _gram_operations_per_number(device: torch.device) -> int:
    """How many float64 multiplications take as long as one float32 number that is written, and read twice."""
    return 64 if summation.multiplies_fast_in_float64(device) else 1


def least_of_terms(dtype: torch.dtype) -> float:
    """The least that a record counts whose terms cancel, as a share of their norms added up: rounding could leave it.

    Never less than in float32: for float64 there is no wider type to measure and to sum in.
    """
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) / ROUNDING_SHARE


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(0.0, 0.0, 0.0)
