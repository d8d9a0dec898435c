"""Records and weights of the right shapes and types that have nothing to do with the user's data."""

import math

import torch
from torch import Tensor, nn

from dpbnn.clipping.objective import Objective
from dpbnn.types import Weights

__all__ = ["FAR_OUT", "random_weights", "synthetic_records", "with_changed_record", "without_padding"]

FAR_OUT = (30.0, 1e6, 1e30, math.inf, math.nan)
"""What a record is multiplied with to see whether others notice."""


def synthetic_records(objective: Objective, x: Tensor, y: Tensor, size: int, num_outputs: int) -> tuple[Tensor, Tensor]:
    """Random inputs and targets, the latter as the likelihood makes them up.

    Whole numbers among the inputs stay within the model's tables, and end in zeros, as padding does.
    """
    shape = (size, *x.shape[1:])
    if x.is_floating_point():
        inputs = torch.randn(shape, device=x.device).to(x.dtype)
    else:
        inputs = torch.randint(0, _table_size(objective.model), shape, device=x.device)
        if inputs.dim() > 1:
            lengths = _lengths((*shape[:-1], 1), shape[-1], x.device)
            inputs = inputs * (torch.arange(inputs.shape[-1], device=x.device) < lengths)
        inputs = inputs.to(x.dtype)
    return inputs, objective.likelihood.synthetic_targets(y, size, num_outputs)


def without_padding(model: nn.Module, x: Tensor) -> Tensor:
    """The same inputs, or as many whole numbers from 1 on (0 in a table of one row)."""
    size = _table_size(model)
    return x if x.is_floating_point() else torch.randint(min(1, size - 1), size, x.shape, device=x.device)


def _lengths(shape: tuple[int, ...], longest: int, device: torch.device) -> Tensor:
    """Random, but for the first ones, which are in no order: a model that sorts by them must move records."""
    lengths = torch.randint(1, longest + 1, shape, device=device)
    for record, length in zip(range(shape[0]), (longest // 2 + 1, longest, 1), strict=False):
        lengths[record] = length
    return lengths


def _table_size(model: nn.Module) -> int:
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    return min(tables, default=2)


def with_changed_record(x: Tensor, y: Tensor, far: float) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The same with the middle record changed, and which records are the others."""
    middle = len(x) // 2
    x, y = x.clone(), y.clone()
    if x.is_floating_point():
        x[middle] = (1 - far * x[middle].double()).to(x.dtype)
    else:
        x[middle] = x[:-1].max() if middle % 2 else x.roll(1, 0)[middle].flip(-1 if x.dim() > 1 else 0)
    y[middle] = (1 - 3 * y[middle]) if y.is_floating_point() else _another_target(y, middle)
    return (x, y), torch.arange(len(x), device=x.device) != middle


def _another_target(y: Tensor, middle: int) -> Tensor:
    """One that some other record has, and that differs where there is one."""
    differs = (y != y[middle]).reshape(len(y), -1).any(dim=1)
    return y[int(differs.int().argmax())]


def random_weights(weights: Weights) -> Weights:
    """The same weights moved at random by about as much as a fresh layer's own spread."""
    return {name: values + torch.randn_like(values) * _spread(values) for name, values in weights.items()}


def _spread(values: Tensor) -> float:
    return 1 / math.sqrt(max(1, values[0].numel())) if values.dim() > 1 else 0.1
