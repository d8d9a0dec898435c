"""Normalisation inside one record: ``y = weight * xhat + bias``, so ``dweight_i = sum_t g_it xhat_it``.

``xhat`` is computed again from the layer's input; the sum runs over the positions that share a weight.
"""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient

__all__ = ["group_norm_rule", "instance_norm_rule", "layer_norm_rule", "rms_norm_rule"]

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


def layer_norm_rule(
    module: nn.LayerNorm, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """Weights over the last dimensions, shared by all positions before them."""
    normalized = F.layer_norm(inputs, module.normalized_shape, eps=module.eps)
    return _affine(normalized, output_gradients, wanted, range(1, inputs.dim() - len(module.normalized_shape)))


def rms_norm_rule(
    module: nn.RMSNorm, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """As layer normalisation, without the mean."""
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    normalized = F.rms_norm(inputs, module.normalized_shape, eps=eps)
    return _affine(normalized, output_gradients, wanted, range(1, inputs.dim() - len(module.normalized_shape)))


def group_norm_rule(
    module: nn.GroupNorm, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """Weights over the channels, shared by all places."""
    normalized = F.group_norm(inputs, module.num_groups, eps=module.eps)
    return _affine(normalized, output_gradients, wanted, range(2, inputs.dim()))


def instance_norm_rule(
    module: InstanceNorm, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """Weights over the channels; running statistics are read where the module does (they are never updated)."""
    if module.training or module.running_mean is None or module.running_var is None:
        normalized = F.instance_norm(inputs, eps=module.eps)
    else:
        mean, variance = module.running_mean.to(inputs.dtype), module.running_var.to(inputs.dtype)
        normalized = F.instance_norm(inputs, mean, variance, use_input_stats=False, eps=module.eps)
    return _affine(normalized, output_gradients, wanted, range(2, inputs.dim()))


def _affine(
    normalized: Tensor, output_gradients: Tensor, wanted: Collection[str], positions: Sequence[int]
) -> dict[str, PerRecordGradient]:
    factors = {}
    if "weight" in wanted:  # in place: `normalized` is nobody else's, and fresh memory costs more than the product
        factors["weight"] = normalized.mul_(output_gradients)
    if "bias" in wanted:
        factors["bias"] = output_gradients
    return {
        name: Dense(values.sum(dim=list(positions)) if len(positions) else values) for name, values in factors.items()
    }
