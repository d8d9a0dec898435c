"""The clipped sum of one step by a plain loop over its records: `tests.truth`, at the weights and masks of a run.

For several draws of the weights a record's gradient is ``(1/N) sum_j (g_j, M_j g_j)``, clipped as one vector. Records
that come again, with the same masks, are differentiated once.
"""

import copy
import math
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpbnn.types import Draws, Weights
from tests import truth
from tests.together.combinations.watch import Clip, with_mask

LARGEST_NORM = 1e18
"""Beyond it a gradient counts as not finite, as docs/clipping.md says."""
ROUNDING = {"bfloat16": 0.01}
"""Of a record's own norm, or of 1 where that is more, as a short gradient is a difference of longer ones: how far its
gradient may be off. bfloat16 has 8 bits, of which several products cost some."""
OF_FLOAT32 = 1e-6


@dataclass(frozen=True)
class Truth:
    """The sum, and how much of every record's gradient was added up in all: what rounding is measured by."""

    total: Weights
    amount: float


def clipped_sum(clip: Clip) -> Truth:
    """Of all records of a step."""
    model = copy.deepcopy(clip.model)
    keys = [_key(clip, row) for row in range(len(clip.x))]
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    total, amount = _zeros(clip.where), 0.0
    for key, times in Counter(keys).items():
        gradients = _gradient(model, clip, first[key])
        length = truth.norm(gradients)
        if not length <= LARGEST_NORM:
            continue
        factor = times * truth.factor_of(length, clip.clip_norm, clip.clipping)
        amount += factor * max(1.0, length)
        for name, values in gradients.items():
            total[name] += factor * values
    return Truth(total, amount)


def in_float64(clip: Clip) -> Clip:
    """The same step, computed as exactly as can be."""
    where = clip.where
    if isinstance(where, Draws):
        where = Draws(tuple(map(_wide, where.weights)), tuple(map(_wide, where.multipliers)))
    else:
        where = _wide(where)
    x, y = (values.double() if values.is_floating_point() else values for values in (clip.x, clip.y))
    return replace(clip, model=copy.deepcopy(clip.model).double(), where=where, x=x, y=y, precision=None)


norm = truth.norm


def distance(first: Weights, second: Weights) -> float:
    """Of two sums, all weights taken together; infinite where one is not finite."""
    apart = math.sqrt(sum(float((first[name].double() - second[name].double()).square().sum()) for name in first))
    return apart if math.isfinite(apart) else math.inf


def _gradient(model: nn.Module, clip: Clip, row: int) -> Weights:
    """Of one record, before it is clipped."""
    if not isinstance(clip.where, Draws):
        return _at(model, clip, clip.where, row, 0)
    pairs = []
    for draw, (weights, multipliers) in enumerate(zip(clip.where.weights, clip.where.multipliers, strict=True)):
        own = _at(model, clip, weights, row, draw)
        pairs.append({name: torch.stack([g, multipliers[name].double() * g]) for name, g in own.items()})
    return {name: torch.stack([pair[name] for pair in pairs]).mean(dim=0) for name in pairs[0]}


def _at(model: nn.Module, clip: Clip, weights: Weights, row: int, draw: int) -> Weights:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
    own = {name: weights[name] for name in clip.likelihood_weights}
    mask = clip.masks[draw][row] if clip.masks else None
    is_coarse = clip.precision == "bfloat16"
    with with_mask(mask), torch.autocast("cpu", torch.bfloat16, enabled=is_coarse, cache_enabled=False):
        return truth.gradient_of_one(model, clip.likelihood, clip.x[row], clip.y[row], own)


def _key(clip: Clip, row: int) -> tuple[bytes, ...]:
    return tuple(_bytes(values[row]) for values in (clip.x, clip.y, *clip.masks))


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()


def _wide(weights: Weights) -> Weights:
    return {name: values.double() for name, values in weights.items()}


def _zeros(where: Weights | Draws) -> Weights:
    weights, front = (where.weights[0], (2,)) if isinstance(where, Draws) else (where, ())
    return {name: torch.zeros(*front, *values.shape, dtype=torch.float64) for name, values in weights.items()}
