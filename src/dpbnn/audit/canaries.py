"""Synthetic records: canaries, each of which may be the person, and the others beside them."""

import math

import torch
from torch import Tensor

from dpbnn.clipping import CheckedModel
from dpbnn.clipping.check.synthetic import synthetic_records

__all__ = ["canaries_and_others"]

SCALES = (0.0, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1e4)
"""Factors of synthetic inputs, which give gradients of all sizes, tiny and huge."""
TRIED_TARGETS = 4

Records = tuple[Tensor, Tensor]


def canaries_and_others(checked: CheckedModel, x: Tensor, y: Tensor, others: int) -> tuple[Records, Records]:
    """Canaries far out, near zero and in a single input, with likely and unlikely targets; and the others."""
    made_x, made_y = synthetic_records(checked.objective, x, y, others + 2 * len(SCALES), checked.num_outputs)
    inputs, targets = _far_out(made_x[others:]), _far_out(made_y[others:])
    canaries = torch.cat([inputs, inputs]), torch.cat([targets, _likely_targets(checked, inputs, y)])
    return canaries, (made_x[:others], made_y[:others])


def _far_out(values: Tensor) -> Tensor:
    """Inputs or targets at several scales; in the second half of the records only the first number is not zero."""
    if not values.is_floating_point():
        return values
    scaled = values * torch.tensor(SCALES * 2, dtype=values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    scaled.reshape(len(scaled), -1)[len(SCALES) :, 1:] = 0
    return scaled


def _likely_targets(checked: CheckedModel, x: Tensor, y: Tensor) -> Tensor:
    """For each record the synthetic target with the least loss of several: its gradient is small."""
    objective = checked.objective
    weights = objective.model_weights() | checked.likelihood_weights
    drawn = [objective.likelihood.synthetic_targets(y, len(x), checked.num_outputs) for _ in range(TRIED_TARGETS)]
    device = next(iter(weights.values())).device
    with torch.no_grad():
        outputs = objective.outputs(weights, x.to(device))
        losses = torch.stack([objective.losses(outputs, targets.to(device), weights) for targets in drawn])
    best = losses.nan_to_num(math.inf).argmin(dim=0).to(y.device)
    return torch.stack(drawn)[best, torch.arange(len(x), device=y.device)]
