"""Max pooling in one launch on a GPU, forward and backward, with the cut at zero that comes before it.

Torch's own takes several times as long, as it writes an index of eight bytes beside every number and takes the cut in
a pass of its own. Results are the same, number for number; only the gradients of a number that is largest in several
windows may be added in another order. Elsewhere than on a GPU the layer runs torch's operations.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from dpbnn.device import kernels

__all__ = ["MaxPool2d"]

BLOCK = 256
MOST, LARGEST_WINDOW = 2**31, 15
"""Numbers that the kernels can count, and the side of a window whose places fit into a byte."""


class MaxPool2d(nn.MaxPool2d):
    """Like torch's, without padding; with `rectify` of ``max(0, x)`` in place of ``x``.

    >>> MaxPool2d(2, stride=1)(torch.tensor([[[-1.0, -2.0, 3.0], [-3.0, -4.0, -5.0]]]), rectify=True)
    tensor([[[0., 3.]]])
    """

    kernel_size: int
    stride: int

    def __init__(self, kernel_size: int, stride: int) -> None:
        super().__init__(kernel_size, stride)

    def forward(self, input: Tensor, rectify: bool = False) -> Tensor:
        """``[..., height, width]`` to the largest number of each window."""
        if not _is_fit(input) or not self.kernel_size <= min(LARGEST_WINDOW, *input.shape[-2:]):
            pooled = max_pool2d(input, self.kernel_size, self.stride)
            return pooled.relu() if rectify else pooled
        keep = torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
        pool = _Pooled.apply if keep else _Pooled.forward  # which takes less time
        pooled, _ = pool(input, self.kernel_size, self.stride, rectify, keep)
        return pooled


def _is_fit(values: Tensor) -> bool:
    return values.is_cuda and values.is_floating_point() and values.numel() < MOST and kernels.work()


@cache
def _kernels() -> Any:
    from dpbnn.device.kernels import pooling as of_pooling

    return of_pooling


class _Pooled(torch.autograd.Function):
    """The largest number of each window, and its place there if that is to be kept."""

    @staticmethod
    def forward(values: Tensor, size: int, stride: int, rectify: bool, keep: bool) -> tuple[Tensor, Tensor]:
        values = values.contiguous()
        height, width = values.shape[-2:]
        rows, columns = ((length - size) // stride + 1 for length in (height, width))
        out = values.new_empty(*values.shape[:-2], rows, columns)
        place = out.new_empty(out.shape if keep else 0, dtype=torch.uint8)
        settings = height, width, rows, columns, size, stride, rectify, keep
        _launch(_kernels().largest, out, (values, out, place), settings)
        return out, place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        values, size, stride, _, _ = inputs
        ctx.settings = (*values.shape[-2:], size, stride)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradients: Tensor, _: Any) -> tuple[Any, ...]:
        return _Spread.apply(gradients, *ctx.saved_tensors, *ctx.settings), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor, *settings: Any) -> tuple[Any, Any]:
        return _Pooled.apply(values.movedim(in_dims[0], 0), *settings), (0, 0)


class _Spread(torch.autograd.Function):
    """Of each window the gradient, at its largest number."""

    @staticmethod
    def forward(gradients: Tensor, place: Tensor, height: int, width: int, size: int, stride: int) -> Tensor:
        gradients, place = gradients.contiguous(), place.contiguous()
        out = gradients.new_empty(*gradients.shape[:-2], height, width)
        settings = height, width, *gradients.shape[-2:], size, stride
        _launch(_kernels().spread, out, (gradients, place, out), settings)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        raise NotImplementedError("Max pooling has no second derivatives here; use torch.nn.MaxPool2d.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradients: Tensor, place: Tensor, *settings: Any) -> tuple[Any, int]:
        moved = (
            values.expand(info.batch_size, *values.shape) if dim is None else values.movedim(dim, 0)
            for values, dim in ((gradients, in_dims[0]), (place, in_dims[1]))
        )
        return _Spread.apply(*moved, *settings), 0


def _launch(kernel: Any, out: Tensor, tensors: tuple[Tensor, ...], settings: tuple[int, ...]) -> None:
    """One program for each block of `out`."""
    if out.numel():
        with torch.cuda.device_of(out):  # where Triton launches; nothing for what is not on a GPU
            kernel[(math.ceil(out.numel() / BLOCK),)](*tensors, out.numel(), *settings, BLOCK=BLOCK)
