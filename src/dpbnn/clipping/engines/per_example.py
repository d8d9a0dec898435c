"""Per-record gradients of any model: all records at once with vmap, or an exact loop, one record at a time.

Slower than book-keeping, and right for all models that treat the first dimension as records. Every record passes
through the model alone, so records cannot mix.
"""

import torch
from torch import Tensor
from torch.func import grad, vmap

from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient
from dpbnn.clipping.objective import Objective, wide
from dpbnn.types import Weights

__all__ = ["loop_gradients", "vmap_gradients"]


def vmap_gradients(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> dict[str, PerRecordGradient]:
    """``vmap(grad(l))``; random layers draw afresh for every record."""
    per_record = vmap(grad(objective.loss_of_one), in_dims=(None, 0, 0), randomness="different")
    gradients = per_record(_trained(objective, weights), x, y)
    return {name: Dense(wide(values)) for name, values in gradients.items()}


def loop_gradients(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> dict[str, PerRecordGradient]:
    """One record, one call of autograd each: slow, and right for everything that autograd can differentiate."""
    leaves = {name: values.detach().requires_grad_() for name, values in _trained(objective, weights).items()}
    rows: list[tuple[Tensor | None, ...]] = []
    for one_x, one_y in zip(x, y, strict=True):
        with torch.enable_grad():
            loss = objective.loss_of_one(leaves, one_x, one_y)
        rows.append(torch.autograd.grad(loss, list(leaves.values()), allow_unused=True))
    columns = dict(zip(leaves, zip(*rows, strict=True), strict=True))
    return {
        name: Dense(torch.stack([wide(torch.zeros_like(leaves[name]) if g is None else g) for g in column]))
        for name, column in columns.items()
    }


def _trained(objective: Objective, weights: Weights) -> Weights:
    return {name: weights[name] for name in (*objective.names, *objective.likelihood_names)}
