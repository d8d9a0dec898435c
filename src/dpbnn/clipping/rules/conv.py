"""Convolution as a linear map of patches: ``dW_i = sum_t g_it patch_it'`` for each group, ``db_i = sum_t g_it``.

Patches are strided views (`Tensor.unfold`), copied once: much faster than `torch.nn.functional.unfold`, and
the same code for one, two and three dimensions.
"""

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbnn.clipping.per_record import Dense, Outer, PerRecordGradient

__all__ = ["conv_rule"]

RECORDS_AT_A_TIME = 32
"""How many records' patches are in memory at once; patches are much larger than the input."""

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def conv_rule(
    module: Conv, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """Positions are the places of the output; each sees one patch of the input."""
    gradients: dict[str, PerRecordGradient] = {}
    if "weight" in wanted:
        g = output_gradients.unflatten(1, (module.groups, -1)).flatten(3).mT
        if Outer.is_cheaper_written_out(g.shape[2], module.weight[0].numel(), g.shape[3]):
            gradients["weight"] = Dense(_written_out(module, inputs, g))
        else:
            gradients["weight"] = Outer(_patches(module, inputs), g, module.weight.shape)
    if "bias" in wanted:
        gradients["bias"] = Dense(output_gradients.flatten(2).sum(dim=2))
    return gradients


def _written_out(module: Conv, inputs: Tensor, g: Tensor) -> Tensor:
    values = inputs.new_empty(len(inputs), module.groups, g.shape[3], module.weight[0].numel())
    for start in range(0, len(inputs), RECORDS_AT_A_TIME):
        part = slice(start, start + RECORDS_AT_A_TIME)
        torch.matmul(g[part].mT, _patches(module, inputs[part]), out=values[part])
    return values.reshape(-1, *module.weight.shape)


def _patches(module: Conv, inputs: Tensor) -> Tensor:
    """``[records, groups, positions, channels per group * kernel]``"""
    dimensions = len(module.kernel_size)
    windows = _pad(module, inputs)
    for axis in range(dimensions):
        size, dilation = module.kernel_size[axis], module.dilation[axis]
        windows = windows.unfold(2 + axis, dilation * (size - 1) + 1, module.stride[axis])[..., ::dilation]
    windows = windows.unflatten(1, (module.groups, -1))
    places = range(3, 3 + dimensions)
    kernel = range(3 + dimensions, 3 + 2 * dimensions)
    patches = windows.permute(0, 1, 2, *kernel, *places)
    return patches.flatten(2, 2 + dimensions).flatten(3).mT


def _pad(module: Conv, inputs: Tensor) -> Tensor:
    if module.padding_mode != "zeros":
        return F.pad(inputs, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    if isinstance(module.padding, str):
        return F.pad(inputs, module._reversed_padding_repeated_twice)
    if not any(module.padding):
        return inputs
    return F.pad(inputs, [side for size in reversed(module.padding) for side in (size, size)])
