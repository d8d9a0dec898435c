"""Convolution as a linear map of patches: ``dW_i = sum_t g_it patch_it'`` for each group, ``db_i = sum_t g_it``.

Patches are strided views (`Tensor.unfold`), copied in the order in which most lies together, often channels last: much
faster than `torch.nn.functional.unfold`, and the same code for one, two and three dimensions. On a GPU, where whole
batches of patches would take nine times the input for a 3 x 3 kernel, only the axes after the first are unfolded, and
a kernel's rows are shifted views of that.
"""

import math
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbnn._internals import padding_reversed
from dpbnn.clipping.forms.per_record import Dense, Outer, PerRecordGradient, Reordered
from dpbnn.clipping.objective import wide

__all__ = ["conv_rule", "patches_ahead"]

PATCH_NUMBERS = 2**19
"""How many numbers the patches of the records taken at a time may have: as many as stay in a processor's cache."""
PATCH_NUMBERS_ON_CUDA = 2**24
"""Up to so many numbers all patches are made at once on a GPU: few launches matter more than memory."""
FEWEST_RECORDS = 4
"""At least this many at a time: the products of fewer are shared badly between processors."""

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def conv_rule(
    module: Conv, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str], patches: Tensor | None = None
) -> dict[str, PerRecordGradient]:
    """Positions are the places of the output; each sees one patch of the input, which may have been made ahead."""
    gradients: dict[str, PerRecordGradient] = {}
    if "weight" in wanted:
        g = output_gradients.unflatten(1, (module.groups, -1)).flatten(3)
        if not Outer.is_cheaper_written_out(g.shape[3], module.weight[0].numel(), g.shape[2], len(g), g.device):
            gradients["weight"] = _as_products(module, inputs, g)
        elif inputs.is_cuda and _is_many(module, len(g), g.shape[3]):
            gradients["weight"] = _written_out_by_rows(module, inputs, g)
        else:
            gradients["weight"] = _written_out_by_patches(module, inputs, g, patches)
    if "bias" in wanted:
        gradients["bias"] = Dense(output_gradients.flatten(2).sum(dim=2))
    return gradients


def _as_products(module: Conv, inputs: Tensor, g: Tensor) -> Reordered:
    windows = _windows(module, inputs)
    patches = windows.reshape(*windows.shape[:2], g.shape[3], -1)
    shape = torch.Size((module.out_channels, *module.kernel_size, windows.shape[-1]))
    return _with_channels_first(Outer(patches, g.mT, shape), module)


def patches_ahead(module: Conv, inputs: Tensor, outputs: torch.Size) -> Tensor | None:
    """All patches, for the rule to use later on; None where it would not use them."""
    places, width, channels = math.prod(outputs[2:]), module.weight[0].numel(), outputs[1] // module.groups
    if _is_many(module, outputs[0], places) or not Outer.is_cheaper_written_out(
        places, width, channels, outputs[0], inputs.device
    ):
        return None
    return _places_together(module, wide(inputs)).contiguous()


def _is_many(module: Conv, records: int, places: int) -> bool:
    """Whether all patches of these records would take too much memory on a GPU."""
    return records * module.groups * places * module.weight[0].numel() > PATCH_NUMBERS_ON_CUDA


def _written_out_by_patches(module: Conv, inputs: Tensor, g: Tensor, ahead: Tensor | None = None) -> Reordered:
    """A few records at a time, through memory that is used again."""
    windows = _places_together(module, inputs) if ahead is None else ahead
    channels = module.weight.shape[1]
    shape = (len(g), module.out_channels, *module.kernel_size, channels)
    numbers = PATCH_NUMBERS_ON_CUDA if inputs.is_cuda else PATCH_NUMBERS
    at_a_time = max(FEWEST_RECORDS, numbers // max(1, windows[:1].numel()))
    place = windows.new_empty(min(at_a_time, len(windows)), *windows.shape[1:]) if ahead is None else ahead
    values = g.new_empty(len(g), *g.shape[1:3], module.weight[0].numel())
    for start in range(0, len(g), at_a_time):
        part = slice(start, min(start + at_a_time, len(g)))
        copied = place[: part.stop - start].copy_(windows[part]) if ahead is None else ahead[part]
        copied = (
            copied.view(-1, values.shape[3], g.shape[3]).mT
            if _copies_places_together(module, inputs)
            else copied.view(-1, g.shape[3], values.shape[3])
        )
        torch.bmm(g[part].flatten(0, 1), copied, out=values[part].flatten(0, 1))
    return _with_channels_first(Dense(values.view(shape)), module)


def _places_together(module: Conv, inputs: Tensor) -> Tensor:
    """Windows in the order in which they are copied fastest."""
    windows, dimensions = _windows(module, inputs), len(module.kernel_size)
    if not _copies_places_together(module, inputs):
        return windows
    return windows.movedim(tuple(range(2, 2 + dimensions)), tuple(range(-dimensions, 0)))


def _copies_places_together(module: Conv, inputs: Tensor) -> bool:
    """Whether a row of places is longer than a row of the kernel with its channels, and lies together in the input."""
    return module.stride[-1] == 1 and inputs.shape[-1] > module.kernel_size[-1] * module.weight.shape[1]


def _with_channels_first(values: Dense | Outer, module: Conv) -> Reordered:
    dimensions = len(module.kernel_size)
    return Reordered(values, (0, 1 + dimensions, *range(1, 1 + dimensions)), module.weight.shape)


def _windows(module: Conv, inputs: Tensor) -> Tensor:
    """``[records, groups, *places, *kernel, channels per group]``, a view of the input or a copy of it."""
    dimensions = len(module.kernel_size)
    windows = _pad(module, inputs).unflatten(1, (module.groups, -1)).movedim(2, -1)
    if not _copies_places_together(module, inputs):
        windows = windows.contiguous()
    for axis in range(dimensions):
        windows = _unfold(windows, 2 + axis, module, axis)
    return windows.movedim(2 + dimensions, -1)


def _written_out_by_rows(module: Conv, inputs: Tensor, g: Tensor) -> Reordered:
    """One batched product for each row of the kernel, which sees the unfolded input from its own row on.

    With a stride of s, rows ``0, s, 2 s, ...`` lie together, then ``1, s + 1, ...``, and so on.
    """
    rows, stride, others = module.kernel_size[0], module.stride[0], len(module.kernel_size) - 1
    padded = _pad(module, inputs)
    if missing := -padded.shape[2] % stride:
        padded = F.pad(padded, [0, 0] * others + [0, missing])
    windows = padded.unflatten(2, (-1, stride))
    for axis in range(1, 1 + others):
        windows = _unfold(windows, 3 + axis, module, axis)
    windows = windows.permute(0, 1, *range(4 + others, 4 + 2 * others), 3, 2, *range(4, 4 + others))
    places, width = math.prod(windows.shape[-others:]) if others else 1, module.weight[0, :, 0].numel()
    columns = windows.reshape(len(g) * module.groups, width, stride, padded.shape[2] // stride * places)
    values = g.new_empty(len(columns), rows, g.shape[2], width)
    for row in range(rows):
        shift, phase = divmod(row * module.dilation[0], stride)
        seen = columns[:, :, phase, shift * places : shift * places + g.shape[3]]
        torch.bmm(g.flatten(0, 1), seen.mT, out=values[:, row])
    layout = (len(g), module.groups, rows, g.shape[2], *module.weight.shape[1:2], *module.kernel_size[1:])
    return Reordered(Dense(values.view(layout)), (0, 2, 3, 1, *range(4, 4 + others)), module.weight.shape)


def _unfold(values: Tensor, dimension: int, module: Conv, axis: int) -> Tensor:
    """A view with the kernel's places along this axis of the kernel in a new last dimension."""
    size, dilation = module.kernel_size[axis], module.dilation[axis]
    return values.unfold(dimension, dilation * (size - 1) + 1, module.stride[axis])[..., ::dilation]


def _pad(module: Conv, inputs: Tensor) -> Tensor:
    if module.padding_mode != "zeros":
        return F.pad(inputs, padding_reversed(module), mode=module.padding_mode)
    if isinstance(module.padding, str):
        return F.pad(inputs, padding_reversed(module))
    if not any(module.padding):
        return inputs
    return F.pad(inputs, [side for size in reversed(module.padding) for side in (size, size)])
