"""A table that is looked up and multiplied with: tied weights, as of a language model's tokens and output layer.

    gradient of record i:  O_i + R_i,   O_i = sum_t g_it a_it'  (the product),   R_i  rows v_ik with values r_ik

    |O_i + R_i|^2 = |O_i|^2 + |R_i|^2 + 2 sum_k sum_t g_it[v_ik] (a_it . r_ik)

Nothing of the table's size is written out for any record: a table of 50257 x 768 would take 154 MB for each.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from dpbnn.clipping import summation
from dpbnn.clipping.forms.per_record import (
    ANYWHERE,
    SMALLEST_NORM,
    Dense,
    Destination,
    Outer,
    PerRecordGradient,
    SparseRows,
    least_of_terms,
    row_norms,
)

__all__ = ["Tied"]


@dataclass(frozen=True)
class Tied(PerRecordGradient):
    """Contributions of a product (one group) and of rows to the same ``[rows, width]`` parameter."""

    product: Outer
    rows: SparseRows

    @property
    def terms(self) -> int:
        return self.product.terms + 1

    def squared_norms(self) -> Tensor:
        """In float64, as the two parts may cancel, and never less than what rounding of the sum could leave."""
        a, g, owners, values = self.product.inputs, self.product.output_gradients, self.rows.records, self.rows.values
        of_product = [norms.clamp_min(SMALLEST_NORM) for norms in self.product.norms]
        terms = (of_product[0] * of_product[1]).sum(dim=(1, 2)).index_add(0, owners, row_norms(values))
        values = values.double()
        each = values.square().sum(dim=1)
        for position in range(a.shape[2]):  # one at a time: all together would take as much for every position
            along = (a[:, 0, position].double()[owners] * values).sum(dim=1)
            each += 2 * along * g[owners, 0, position, self.rows.rows].double()
        exact = self._squares_of_product().index_add(0, owners, each)
        return torch.maximum(exact, (least_of_terms(a.dtype) * terms).square())

    def _squares_of_product(self) -> Tensor:
        if self.product.inputs.shape[2] > 1:
            return self.product.squared_norms()
        a, g = self.product.inputs.double().flatten(1), self.product.output_gradients.double().flatten(1)
        return a.square().sum(dim=1) * g.square().sum(dim=1)

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        """Both in float64, and rounded once at most: they may cancel within a record."""
        largest_batch = into.largest_batch or len(factors)
        slices = summation.slices(len(factors), self.terms, largest_batch)
        total = reduce(Tensor.add_, (self._in_float64(some, factors, largest_batch) for some in slices))
        return into.place(total.to(into.type_for(self.rows.values)))

    def _in_float64(self, some: slice, factors: Tensor, largest_batch: int) -> Tensor:
        """The sum over some of the records, whose two parts cancel at once."""
        a, g = self.product.inputs[some], self.product.output_gradients[some]
        of_some = torch.zeros_like(factors)  # which rows are whose is not asked: a GPU would wait for the answer
        of_some[some] = factors[some]
        total = summation.in_float64(a, g, factors[some], largest_batch).view(self.product.shape)
        return total.add_(self.rows.total(of_some, torch.float64))

    def finite(self) -> "Tied":
        return Tied(self.product.cleaned(), self.rows.finite())

    def dense(self) -> Dense:
        return Dense(self.product.dense().values + self.rows.dense().values)
