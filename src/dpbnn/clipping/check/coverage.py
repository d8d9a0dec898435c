"""Whether book-keeping is right for a model, found out on synthetic records.

Two batch sizes tell which dimension of a layer's tensors follows the records, and the gradient of one record's loss
which rows of a merged dimension belong to it. Gradients by that treatment are then compared with an exact loop.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpbnn.clipping.engines.book_keeping import NotCovered, Recording, Use, per_record_gradients, record
from dpbnn.clipping.engines.layout import FIRST, NOWHERE, Layout, Treatment
from dpbnn.clipping.engines.per_example import loop_gradients
from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient
from dpbnn.clipping.objective import Objective
from dpbnn.clipping.rules import rule_for
from dpbnn.types import Weights

__all__ = ["agrees_with_loop", "find_treatment"]

LOOKS = ((2, 0), (3, 2))
"""Two numbers of records, and the record that is looked at: together they tell apart how rows can be ordered."""
FINE, COARSE = 1e-3, 0.1
"""How far a weight's gradient may be off, as a share of its norm, in float32 and in half precision."""


def find_treatment(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> Treatment | None:
    """How book-keeping must treat the model, or None if it cannot."""
    looks = [_look(objective, weights, x[:size], y[:size], record_index) for size, record_index in LOOKS]
    if any(look.picks_rows for look in looks):
        return None
    if len({tuple((use.call.name, len(use.inputs)) for use in look.uses) for look in looks}) > 1:
        return None
    layouts: dict[str, Layout] = {}
    for index, use in enumerate(looks[0].uses):
        layout = _layout(looks, index)
        if layout is None or layouts.setdefault(use.call.name, layout) != layout:
            return None
    layouts = {name: layout for name, layout in layouts.items() if layout != FIRST}
    tried = objective.treated(Treatment(layouts, None))
    recordings = [record(tried, weights, x[:size], y[:size]) for size, _ in LOOKS] if layouts else looks
    if any(recording.strays for recording in recordings) or recordings[0].steps != recordings[1].steps:
        return None
    return Treatment(layouts, recordings[0].steps)


class Look(Recording):
    """A recording of shapes, and of the rows that one record's loss depends on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: dict[Use, list[int]] = {}

    def receive(self, use: Use, gradient: Tensor) -> None:
        """Note the rows of an output that matter."""
        self.rows[use] = gradient.flatten(1).any(dim=1).nonzero().flatten().tolist() if gradient.dim() > 1 else []


def _look(objective: Objective, weights: Weights, x: Tensor, y: Tensor, record_index: int) -> Look:
    look = record(objective.treated(Treatment({}, None)), weights, x, y, Look)
    assert isinstance(look, Look)
    if look.losses.requires_grad:
        gradients = torch.autograd.grad(look.losses[record_index], look.leaves(), allow_unused=True)
        for receive, gradient in look.received(gradients):
            receive(gradient)
    return look


def _layout(looks: list[Look], index: int) -> Layout | None:
    """From the sizes that follow the number of records, which differ between two looks."""
    uses = [look.uses[index] for look in looks]
    shapes = ([*(values.shape for values in use.inputs), use.shape] for use in uses)
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
    return _merged([look.rows.get(use, []) for look, use in zip(looks, uses, strict=True)], each, dimension)


def _following(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]] | None:
    """The dimensions whose sizes differ, each with its size per record; None if that is no whole number."""
    following = [(k, a // LOOKS[0][0]) for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    fits = all((first[k], second[k]) == (each * LOOKS[0][0], each * LOOKS[1][0]) for k, each in following)
    return following if fits and len(first) == len(second) else None


def _merged(rows: list[list[int]], each: int, dimension: int) -> Layout | None:
    """How records and positions share the first dimension, from the rows that one record's loss depends on."""
    if not all(rows):  # its loss depends on none, and any order would fit
        return None
    owners = {"blocks": lambda row, size: row // each, "interleaved": lambda row, size: row % size}
    for order, owner in owners.items():
        if dimension == 0 and all(
            owner(row, size) == index for (size, index), seen in zip(LOOKS, rows, strict=True) for row in seen
        ):
            return Layout(0, order, each)
    return None


def agrees_with_loop(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> bool:
    """Whether book-keeping gives the gradients that an exact loop over the records gives; one record after another."""
    try:
        gradients = per_record_gradients(objective, weights, x, y)
    except NotCovered:
        return False
    return all(_agrees(objective, weights, x, y, index, gradients) for index in range(len(x)))


def _agrees(
    objective: Objective, weights: Weights, x: Tensor, y: Tensor, index: int, gradients: dict[str, PerRecordGradient]
) -> bool:
    alone = loop_gradients(objective, weights, x[index : index + 1], y[index : index + 1])
    exact = {name: values.dense().values[0] for name, values in alone.items()}
    total = math.sqrt(sum(float(values.double().square().sum()) for values in exact.values()))
    this = (torch.arange(len(x), device=x.device) == index).double()
    for name, values in exact.items():
        by_rule = (
            gradients[name].finite()
            if name in gradients
            else Dense(torch.zeros_like(values).expand(len(x), *values.shape))
        )
        off, length = (float(part.double().norm()) for part in (by_rule.weighted_sum(this) - values, values))
        share = COARSE if weights[name].element_size() < 4 else FINE
        room = share * length + share / 10 * total
        is_shorter = float(by_rule.squared_norms()[index].sqrt()) < length - room
        if math.isfinite(total) and (is_shorter or not off <= room):
            return False
    return True
