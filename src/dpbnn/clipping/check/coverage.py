"""Whether book-keeping is right for a model, found out on synthetic records.

Two batch sizes tell which dimension of a layer's tensors follows the records, and the gradient of one record's loss
which rows of a merged dimension belong to it. Gradients by that layout are then compared with an exact loop.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpbnn.clipping.engines.book_keeping import NotCovered, Trace, Use, per_record_gradients
from dpbnn.clipping.engines.layout import FIRST, NOWHERE, Layout, ModelLayout
from dpbnn.clipping.engines.per_example import loop_gradients
from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient
from dpbnn.clipping.objective import Objective, wide
from dpbnn.clipping.rules import rule_for
from dpbnn.types import Weights

__all__ = ["agrees_with_loop", "find_layout"]

TRACED = ((2, 0), (3, 2))
"""Two numbers of records, and the record whose loss is differentiated: together they tell apart all orders of rows."""
FINE, COARSE = 1e-3, 0.1
"""How far a weight's gradient may be off, as a share of its norm, in float32 and in half precision."""


def find_layout(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> ModelLayout | None:
    """Where the model's tensors hold the records, or None if book-keeping cannot serve the model."""
    traces = [_row_trace(objective, weights, x[:size], y[:size], record) for size, record in TRACED]
    if any(trace.selects_rows for trace in traces):
        return None
    if len({tuple((use.call.name, len(use.inputs)) for use in trace.uses) for trace in traces}) > 1:
        return None
    layers: dict[str, Layout] = {}
    for index, use in enumerate(traces[0].uses):
        layout = _layer_layout(traces, index)
        if layout is None or layers.setdefault(use.call.name, layout) != layout:
            return None
    layers = {name: layout for name, layout in layers.items() if layout != FIRST}
    tried = objective.with_layout(ModelLayout(layers, None))
    again = [Trace.of(tried, weights, x[:size], y[:size]) for size, _ in TRACED] if layers else traces
    if any(trace.uncovered for trace in again) or again[0].operations != again[1].operations:
        return None
    return ModelLayout(layers, again[0].operations)


class RowTrace(Trace):
    """A trace that notes which rows of each layer's output the loss of one record depends on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: dict[Use, list[int]] = {}

    def receive(self, use: Use, gradient: Tensor) -> None:
        """The rows whose gradient is not zero."""
        self.rows[use] = gradient.flatten(1).any(dim=1).nonzero().flatten().tolist() if gradient.dim() > 1 else []


def _row_trace(objective: Objective, weights: Weights, x: Tensor, y: Tensor, record: int) -> RowTrace:
    trace = RowTrace.of(objective.with_layout(ModelLayout({}, None)), weights, x, y)
    if trace.losses.requires_grad:
        gradients = torch.autograd.grad(trace.losses[record], trace.leaves(), allow_unused=True)
        for receive, gradient in trace.received(gradients):
            receive(gradient)
    return trace


def _layer_layout(traces: list[RowTrace], index: int) -> Layout | None:
    """From the sizes that follow the number of records, which differs between the two traces."""
    uses = [trace.uses[index] for trace in traces]
    shapes = ([*(values.shape for values in use.inputs), use.output_shape] for use in uses)
    first, *others = (_following(*pair) for pair in zip(*shapes, strict=True))
    if first is None or len(first) > 1 or any(other != first for other in others):
        return None
    if first == [(0, 1)]:
        return FIRST
    rule = rule_for(uses[0].call.module)
    if rule is None or not rule.any_layout:
        return None
    if not first:
        return NOWHERE
    ((dimension, each),) = first
    if each == 1:
        return Layout(dimension)
    return _merged([trace.rows.get(use, []) for trace, use in zip(traces, uses, strict=True)], each, dimension)


def _following(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]] | None:
    """The dimensions whose sizes differ, each with its size per record; None if that is no whole number."""
    sizes = [size for size, _ in TRACED]
    following = [(k, a // sizes[0]) for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    fits = all([first[k], second[k]] == [each * size for size in sizes] for k, each in following)
    return following if fits and len(first) == len(second) else None


def _merged(rows: list[list[int]], each: int, dimension: int) -> Layout | None:
    """How records and positions share the first dimension, from the rows that one record's loss depends on."""
    if dimension != 0 or not all(rows):  # where its loss depends on none, any order would fit
        return None
    owners = {"blocks": lambda row, size: row // each, "interleaved": lambda row, size: row % size}
    for order, owner in owners.items():
        if all(owner(row, size) == record for (size, record), seen in zip(TRACED, rows, strict=True) for row in seen):
            return Layout(0, order, each)
    return None


def agrees_with_loop(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> bool:
    """Whether book-keeping gives the gradients that an exact loop over the records gives; one record after another."""
    try:
        gradients = per_record_gradients(objective, weights, x, y)
    except NotCovered:
        return False
    unused = {name: values for name, values in weights.items() if name not in gradients}
    finite = {name: values.finite() for name, values in gradients.items()}
    finite |= {name: Dense(wide(torch.zeros_like(v)).expand(len(x), *v.shape)) for name, v in unused.items()}
    return all(_agrees(objective, weights, x, y, index, finite) for index in range(len(x)))


def _agrees(
    objective: Objective, weights: Weights, x: Tensor, y: Tensor, index: int, gradients: dict[str, PerRecordGradient]
) -> bool:
    alone = loop_gradients(objective, weights, x[index : index + 1], y[index : index + 1])
    exact = {name: values.dense().values[0] for name, values in alone.items()}
    total = math.sqrt(sum(float(values.double().square().sum()) for values in exact.values()))
    this = (torch.arange(len(x), device=x.device) == index).double()
    for name, values in exact.items():
        off, length = (float(part.double().norm()) for part in (gradients[name].weighted_sum(this) - values, values))
        share = COARSE if weights[name].element_size() < 4 else FINE
        room = share * length + share / 10 * total
        is_shorter = float(gradients[name].squared_norms()[index].sqrt()) < length - room
        if math.isfinite(total) and (is_shorter or not off <= room):
            return False
    return True
