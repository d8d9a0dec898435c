"""Whether book-keeping is right for a model, found out on synthetic records.

Two batch sizes tell which dimension of a layer's tensors follows the records, and the gradient of one record's loss
which rows of a merged dimension are its own. What was found is then compared with the exact loop over records.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.clipping.engines.book_keeping import NotCovered, Recording, Use, per_record_gradients, record
from dpbnn.clipping.engines.layout import FIRST, NOWHERE, Layout, Treatment
from dpbnn.clipping.engines.per_example import loop_gradients
from dpbnn.clipping.forms.per_record import PerRecordGradient
from dpbnn.clipping.objective import Objective
from dpbnn.types import Weights

__all__ = ["agrees_with_loop", "find_treatment"]

LOOKS = ((2, 0), (3, 2))
"""Two numbers of records, and the record that is looked at: together they tell apart how rows can be ordered."""
FINE, COARSE = 1e-3, 0.1
"""How far a weight's gradient may be off, as a share of its norm, in float32 and in half precision."""
ANY_LAYOUT = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)
"""Layers whose rules take any dimensions between the records and the features."""


def find_treatment(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> Treatment | None:
    """How book-keeping must treat the model, or None if it cannot."""
    looks = [_look(objective, weights, x[:size], y[:size], record_index) for size, record_index in LOOKS]
    if any(look.picks_rows for look in looks):
        return None
    if [use.call.name for use in looks[0].uses] != [use.call.name for use in looks[1].uses]:
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
    """A recording that only looks: at shapes, and at the rows that one record's loss depends on."""

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
    inputs = [use.input.shape for use in uses if use.input is not None]
    follow = [_following(*shapes) for shapes in (inputs, [use.shape for use in uses])]
    if follow[0] != follow[1] or follow[0] is None or len(follow[0]) > 1:
        return None
    if follow[0] == [(0, 1)]:
        return FIRST
    if type(uses[0].call.module) not in ANY_LAYOUT:
        return None
    if not follow[0]:
        return NOWHERE
    ((dimension, each),) = follow[0]
    if each == 1:
        return Layout(dimension)
    return _merged([look.rows.get(use, []) for look, use in zip(looks, uses, strict=True)], each, dimension)


def _following(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]] | None:
    """The dimensions whose sizes differ, each with its size per record; None if that is no whole number."""
    found = [(k, a // LOOKS[0][0]) for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    fits = all((first[k], second[k]) == (each * LOOKS[0][0], each * LOOKS[1][0]) for k, each in found)
    return found if fits and len(first) == len(second) else None


def _merged(rows: list[list[int]], each: int, dimension: int) -> Layout | None:
    """How records and positions share the first dimension: the rows that a record's loss depends on are its own."""
    if not all(rows):  # nothing was seen of it, and any order would fit
        return None
    owners = {"blocks": lambda row, size: row // each, "interleaved": lambda row, size: row % size}
    for order, owner in owners.items():
        if dimension == 0 and all(
            owner(row, size) == index for (size, index), own in zip(LOOKS, rows, strict=True) for row in own
        ):
            return Layout(0, order, each)
    return None


def agrees_with_loop(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> bool:
    """Whether book-keeping gives the gradients that an exact loop over the records gives; one record after another."""
    try:
        found = per_record_gradients(objective, weights, x, y)
    except NotCovered:
        return False
    return all(_agrees(objective, weights, x, y, index, found) for index in range(len(x)))


def _agrees(
    objective: Objective, weights: Weights, x: Tensor, y: Tensor, index: int, found: dict[str, PerRecordGradient]
) -> bool:
    alone = loop_gradients(objective, weights, x[index : index + 1], y[index : index + 1])
    exact = {name: values.dense().values[0] for name, values in alone.items()}
    total = math.sqrt(sum(float(values.double().square().sum()) for values in exact.values()))
    this = (torch.arange(len(x), device=x.device) == index).double()
    for name, values in exact.items():
        mine = found[name].finite().weighted_sum(this) if name in found else torch.zeros_like(values)
        share = COARSE if weights[name].element_size() < 4 else FINE
        off, own = (float(part.double().norm()) for part in (mine - values, values))
        if math.isfinite(total) and not off <= share * own + share / 10 * total:
            return False
    return True
