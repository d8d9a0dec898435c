"""Several contributions to one parameter: a layer that is used twice, or tied weights."""

from dpbnn.clipping.forms.deferred import Deferred
from dpbnn.clipping.forms.per_record import Dense, Outer, PerRecordGradient, Reordered, SparseRows
from dpbnn.clipping.forms.tied import Tied

__all__ = ["combine"]


def combine(first: PerRecordGradient, second: PerRecordGradient) -> PerRecordGradient:
    """The sum of two contributions to the same parameter, in whatever forms they are."""
    first, second = (values.products() if isinstance(values, Deferred) else values for values in (first, second))
    if isinstance(first, Outer) and isinstance(second, Outer):
        return first.plus(second)
    if isinstance(first, SparseRows) and isinstance(second, SparseRows):
        return first.plus(second)
    if isinstance(first, Reordered) and isinstance(second, Reordered) and first.axes == second.axes:
        return Reordered(combine(first.values, second.values), first.axes, first.shape)
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Tied) and isinstance(other, Outer):
            return Tied(one.product.plus(other), one.rows)
        if isinstance(one, Tied) and isinstance(other, SparseRows):
            return Tied(one.product, one.rows.plus(other))
        if isinstance(one, Outer) and isinstance(other, SparseRows):
            return Tied(one, other)
        if isinstance(one, Dense) and isinstance(other, SparseRows):
            places = other.records * other.shape[0] + other.rows
            return Dense(one.values.flatten(0, 1).index_add(0, places, other.values).view_as(one.values))
    return Dense(first.dense().values + second.dense().values)
