"""A batch in parts: how many records are taken through the model at a time, and rows of zeros behind them."""

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from dpbnn.clipping.check.compatibility import CheckedModel
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.types import Draws, Weights

__all__ = ["ROWS_ALIKE", "part_size", "parts"]

WRITTEN_OUT_NUMBERS = 2**26
"""The most numbers of per-record gradients that are written out in a part."""
ROWS_ALIKE = 16
"""In matrices of this many rows, or a multiple, kernels for CPUs round all rows alike, for most widths."""


def part_size(checked: CheckedModel, where: Weights | Draws, micro_batch_size: int | None) -> int:
    """How many records are taken through the model at a time."""
    device = next(checked.objective.model.parameters()).device
    size = min(micro_batch_size or _size_for_memory(checked, where, device), LARGEST_PART)
    return size - size % ROWS_ALIKE if device.type == "cpu" and size > ROWS_ALIKE else size


def _size_for_memory(checked: CheckedModel, where: Weights | Draws, device: torch.device) -> int:
    """As many as a part may have, unless gradients are written out for every record and would take too much memory."""
    if isinstance(where, Draws):
        written_out = 2 * len(where.weights) * checked.numbers_written_out
    elif checked.engine != "book_keeping":
        written_out = sum(values.numel() for values in where.values())
    elif device.type == "cuda":
        return max(1, _room_on(device) // max(1, 4 * checked.numbers_written_out))
    else:
        return LARGEST_PART
    return max(1, WRITTEN_OUT_NUMBERS // max(1, written_out))


@cache
def _room_on(device: torch.device) -> int:
    """Bytes on a GPU for gradients that are written out; by its size alone, so that parts are the same every time."""
    return torch.cuda.get_device_properties(device).total_memory // 8


def parts(
    x: Tensor, y: Tensor, present: Tensor | None, size: int, pads: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Some records at a time; on a CPU with rows of zeros behind them, so that records are rounded alike.

    Kernels take the last few rows of a matrix in another way than the others, and round differently: without padding,
    one record more could change the last bit of another's gradient, and clipping makes a large change of that. For some
    widths and layers it still can; only records that are taken one by one (`size` 1) cannot touch each other.
    """
    if not len(x):
        return
    pads = pads and present is None and x.device.type == "cpu" and size > 1
    masks = [None] * math.ceil(len(x) / size) if present is None else present.split(size)
    for part_x, part_y, mask in zip(x.split(size), y.split(size), masks, strict=True):
        count = len(part_x)
        full = ROWS_ALIKE * math.ceil(count / ROWS_ALIKE) if size >= ROWS_ALIKE else size
        if pads and full > count:
            yield _padded(part_x, full), _padded(part_y, full), torch.arange(full) < count
        else:
            yield part_x, part_y, mask


def _padded(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows - len(values), *values.shape[1:])])
