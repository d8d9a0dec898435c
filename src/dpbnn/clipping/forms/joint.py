"""Per-record gradients in mean and spread of the weights together, averaged over draws (Algorithm 3 of the paper).

    gradient of record i:  (1/N) sum_j (g_ij, M_j * g_ij)

g_ij is its gradient at draw j, M_j what a change of the spread does to that draw. For a linear layer on one position,
``g_ij = b_j a_j'``, the norm comes from matrix products and nothing is written out:

    |.|^2 = (1/N^2) sum_jk [ (b_j.b_k)(a_j.a_k) + (b_j*b_k)' (M_j*M_k) (a_j*a_k) ]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeGuard

import torch
from torch import Tensor

from dpbnn.clipping import summation
from dpbnn.clipping.forms.per_record import (
    ANYWHERE,
    LONGEST_FLOAT32_SUM,
    Dense,
    Destination,
    Outer,
    PerRecordGradient,
    least_of_terms,
)
from dpbnn.clipping.objective import wide
from dpbnn.types import Draws, Weights

__all__ = ["Joint", "is_one_product", "jointly"]

SMALLEST = 1e-30


def is_one_product(gradient: PerRecordGradient) -> TypeGuard[Outer]:
    """Whether a weight's gradient is ``b a'`` for every record, and need not be written out."""
    return isinstance(gradient, Outer) and gradient.inputs.shape[1:3] == (1, 1) and len(gradient.shape) == 2


@dataclass(frozen=True)
class Joint(PerRecordGradient):
    """The gradients of all records for one weight: `draws` and `multipliers` hold one entry for each draw."""

    draws: tuple[Outer, ...]
    multipliers: tuple[Tensor, ...]

    @staticmethod
    def of(terms: Sequence[PerRecordGradient], multipliers: Sequence[Tensor]) -> "PerRecordGradient":
        """Kept as products where every draw is one product; written out where not."""
        products = tuple(term for term in terms if is_one_product(term))
        if len(products) == len(terms):
            return Joint(products, tuple(multipliers))
        dense = [term.dense().values for term in terms]
        in_mean = torch.stack(dense).mean(dim=0)
        in_spread = torch.stack([values * m for values, m in zip(dense, multipliers, strict=True)]).mean(dim=0)
        return Dense(torch.stack([in_mean, in_spread], dim=1))

    @property
    def terms(self) -> int:
        return 1 if len(self.draws) == 1 else 2 * len(self.draws) + 1

    def squared_norms(self) -> Tensor:
        """One draw: sums of squares, which cannot cancel. Several: in float64, and never less than rounding leaves."""
        if len(self.draws) == 1:
            return self.draws[0].squared_norms() + self._spread_of_one()
        in_mean = reduce(Outer.plus, self.draws).squared_norms()
        return (in_mean + self._spread_of_many()) / len(self.draws) ** 2

    def _spread_of_one(self) -> Tensor:
        a, b, sizes = _directions(self.draws[0])
        rows = zip(b.split(LONGEST_FLOAT32_SUM, dim=1), self.multipliers[0].split(LONGEST_FLOAT32_SUM), strict=True)
        pulled = torch.stack([(part.square() @ m.square()).double() for part, m in rows]).sum(dim=0)
        return (pulled * a.double().square()).sum(dim=1) * sizes.square()

    def _spread_of_many(self) -> Tensor:
        parts = [(a.double(), b.double(), sizes) for a, b, sizes in map(_directions, self.draws)]
        multipliers = [m.double() for m in self.multipliers]
        total, largest = torch.zeros_like(parts[0][2]), torch.zeros_like(parts[0][2])
        for j, ((a, b, sizes), m) in enumerate(zip(parts, multipliers, strict=True)):
            largest += sizes * m.abs().max()
            for k, ((other_a, other_b, other_sizes), other_m) in enumerate(zip(parts, multipliers, strict=True)):
                if k <= j:
                    product = (((b * other_b) @ (m * other_m)) * a * other_a).sum(dim=1) * sizes * other_sizes
                    total += product if k == j else 2 * product
        # The sum below is rounded per draw: a record whose draws cancel almost wholly counts by its draws.
        return torch.maximum(total, (least_of_terms(self.multipliers[0].dtype) * largest).square())

    def weighted_sum(self, factors: Tensor, into: Destination = ANYWHERE) -> Tensor:
        """``[2, *shape]``: in the mean, and in the spread. Draws that cancel do so in float64."""
        if len(self.draws) == 1:
            total = self.draws[0].weighted_sum(factors, into.anywhere())
            return into.place(torch.stack([total, total * self.multipliers[0]]))
        slices = summation.slices(len(factors), self.terms, into.largest_batch or len(factors))
        both = reduce(Tensor.add_, (self._in_float64(some, factors[some]) for some in slices))
        return into.place(both.to(into.type_for(self.multipliers[0])))

    def _in_float64(self, some: slice, factors: Tensor) -> Tensor:
        """The sum over some of the records, whose draws cancel at once."""
        sums = [_wide(term, some).weighted_sum(factors) for term in self.draws]
        in_spread = [values * m for values, m in zip(sums, self.multipliers, strict=True)]
        return torch.stack([torch.stack(sums).mean(dim=0), torch.stack(in_spread).mean(dim=0)])

    def finite(self) -> "Joint":
        if len(self.draws) == 1:
            return Joint((self.draws[0].finite(),), self.multipliers)
        return Joint(tuple(term.cleaned() for term in self.draws), self.multipliers)

    def dense(self) -> Dense:
        written = Joint.of([term.dense() for term in self.draws], self.multipliers)
        assert isinstance(written, Dense)
        return written


def jointly(
    at_each: list[dict[str, PerRecordGradient]], where: Weights | Draws, records: int
) -> dict[str, PerRecordGradient]:
    """Per-record gradients by weight: joint over several draws of the weights, at each of which some were taken.

    A draw whose gradients do not reach a weight counts as zeros. Those at each draw are let go.
    """
    if not isinstance(where, Draws):
        return at_each.pop()
    joint = {}
    for name in {name: None for gradients in at_each for name in gradients}:
        like = wide(where.weights[0][name])
        zeros = partial(like.new_zeros, (records, *like.shape))
        terms = [gradients.pop(name) if name in gradients else Dense(zeros()) for gradients in at_each]
        joint[name] = Joint.of(terms, [multipliers[name] for multipliers in where.multipliers])
    return joint


def _directions(term: Outer) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and output gradients as unit vectors, whose squares stay in float32, and the product of their norms."""
    a, b = term.inputs[:, 0, 0], term.output_gradients[:, 0, 0]
    sizes = [norms[:, 0, 0].clamp_min(SMALLEST) for norms in term.norms]
    return a / sizes[0][:, None].to(a.dtype), b / sizes[1][:, None].to(b.dtype), sizes[0] * sizes[1]


def _wide(term: Outer, some: slice) -> Outer:
    return Outer(term.inputs[some].double(), term.output_gradients[some].double(), term.shape)
