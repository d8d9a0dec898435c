"""Cross entropy and its gradient in one launch on a GPU; torch's operations take ten, a good part of a small step.

Results equal torch's up to rounding.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dpbnn._internals import in_vmap_or_grad
from dpbnn.device import kernels

__all__ = ["cross_entropy", "is_used_for"]

MOST_CLASSES = 1024
NUMBERS = 512
"""How many numbers one program reads."""


def is_used_for(logits: Tensor, labels: Tensor) -> bool:
    """Whether the kernel supports this device, these types and this many classes; vmap needs torch's operations."""
    return (
        logits.is_cuda
        and logits.dtype in (torch.float32, torch.float64)
        and labels.dtype in (torch.int32, torch.int64)
        and 0 < logits.shape[-1] <= MOST_CLASSES
        and not in_vmap_or_grad()
        and kernels.work()
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``-log softmax(f)_y`` of each row of ``[records, classes]``; an invalid label gives NaN, also in the gradient."""
    losses: Tensor = _CrossEntropy.apply(logits, labels)
    return losses


@cache
def _kernel() -> Any:
    from dpbnn.device.kernels.cross_entropy import cross_entropy as kernel

    return kernel


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        rows_of, (records, classes) = logits.contiguous(), logits.shape
        losses, slopes = rows_of.new_empty(records), torch.empty_like(rows_of)
        columns = 2 ** math.ceil(math.log2(classes))
        rows = max(1, NUMBERS // columns)
        if records:
            with torch.cuda.device_of(logits):  # where Triton launches; nothing for what is not on a GPU
                _kernel()[(math.ceil(records / rows),)](
                    rows_of, labels.contiguous(), losses, slopes, records, classes,
                    IS_WIDE=logits.dtype == torch.float64, ROWS=rows, COLUMNS=columns,
                )  # fmt: skip
        ctx.save_for_backward(logits, labels, slopes)
        return losses

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        logits, labels, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():  # this gradient will be differentiated in turn
            is_label = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
            slopes = (logits.softmax(dim=1) - is_label.to(logits.dtype)) / is_label.any(dim=1)[:, None]
        return slopes * gradients[:, None], None
