"""Tensors that lie side by side in memory: an operation on all of them then takes one pass, or one launch.

>>> import torch
>>> weights = flat_copies({"a": torch.ones(2), "b": torch.ones(3)})
>>> [len(numbers) for (numbers,) in joined([weights[name] for name in sorted(weights)])]
[5]
"""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from dpbnn._internals import storage_key
from dpbnn.seeds import FlatWeights
from dpbnn.types import Weights

__all__ = ["flat_copies", "joined", "of_each"]


def flat_copies(weights: Weights) -> Weights:
    """Copies of the weights side by side, in the order of their names; apart where their types differ."""
    if len({values.dtype for values in weights.values()}) > 1:
        return {name: values.detach().clone() for name, values in weights.items()}
    flat = FlatWeights(weights)
    for name, values in weights.items():
        flat.views[name].copy_(values.detach())
    return flat.views


def of_each(operation: Callable[..., Tensor], *given: Weights, into: Weights | None = None) -> Weights:
    """``operation(a, b, ..., out=result)`` for the weights of each name; `into` is memory that may be used again."""
    names = sorted(given[0])
    results = FlatWeights(given[0]).views if into is None else into
    for out, *values in joined(*([part[name] for name in names] for part in (results, *given))):
        operation(*values, out=out)
    return {name: results[name] for name in given[0]}


def joined(*lists: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of several lists, place by place and flat; what is side by side in all of them is one."""
    run: list[tuple[Tensor, ...]] = []
    for row in zip(*lists, strict=True):
        if run and not all(map(_follows, run[-1], row)):
            yield _flat(run)
            run = []
        run.append(row)
    if run:
        yield _flat(run)


def _follows(before: Tensor, after: Tensor) -> bool:
    return (
        after.data_ptr() == before.data_ptr() + before.nbytes
        and after.dtype == before.dtype
        and storage_key(after.untyped_storage()) == storage_key(before.untyped_storage())
        and before.is_contiguous()
        and after.is_contiguous()
    )


def _flat(run: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    columns = zip(*run, strict=True)
    if len(run) == 1:
        return tuple(values.view(-1) if values.is_contiguous() else values for (values,) in columns)
    return tuple(column[0].as_strided((sum(values.numel() for values in column),), (1,)) for column in columns)
