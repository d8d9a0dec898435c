"""Layers with dropout inside, by formula: fused kernels of CUDA devices draw from the default generator alone.

Attention becomes products and a softmax, recurrent layers are run one after another, with `F.dropout` in between, whose
draws can be given a generator (`dpbnn.device.generators`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["RECURRENT", "ByFormula", "Recurrent", "attention"]


class ByFormula(TorchFunctionMode):
    """Inside, attention and recurrent layers of this thread that draw on a CUDA device are computed by formula."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RECURRENT and args[0].is_cuda and Recurrent.of(args).draws:
            return Recurrent.of(args).run(func)
        if func is F.scaled_dot_product_attention and args[0].is_cuda and _dropout_rate(args, kwargs) > 0:
            return attention(*args, **kwargs)
        if func is F.multi_head_attention_forward and args[0].is_cuda and _draws_unseen(args, kwargs):
            outputs, _ = func(*args, **kwargs | {"need_weights": True})  # which no fused kernel computes
            return outputs, None
        return func(*args, **kwargs)


def _draws_unseen(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether attention draws in a fused kernel: it uses none if the attention weights are wanted too."""
    rate = kwargs.get("dropout_p", args[10] if len(args) > 10 else 0.0)
    return rate > 0 and kwargs.get("training", True) and not kwargs.get("need_weights", True)


def _dropout_rate(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``dropout(softmax(Q K' / sqrt(d) + mask)) V``"""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.mT * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if is_bool else scores + attn_mask
    return F.dropout(scores.softmax(dim=-1), dropout_p) @ value


RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})


@dataclass(frozen=True)
class Recurrent:
    """The arguments of a recurrent layer: for padded sequences with `batch_first` last, for packed ones with sizes."""

    x: Tensor
    sizes: tuple[Tensor, ...]
    hx: Any
    params: Sequence[Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    rest: tuple[Any, ...]

    @staticmethod
    def of(args: tuple[Any, ...]) -> "Recurrent":
        """From the positional arguments of `torch.lstm` and its kin."""
        is_packed = isinstance(args[3], (list, tuple))
        hx, params, has_biases, num_layers, dropout, train, bidirectional, *rest = args[2:] if is_packed else args[1:]
        how = has_biases, num_layers, dropout, train, bidirectional, tuple(rest)
        return Recurrent(args[0], args[1:2] if is_packed else (), hx, params, *how)

    @property
    def draws(self) -> bool:
        """Whether there is dropout between layers."""
        return self.train and self.dropout > 0 and self.num_layers > 1

    def run(self, func: Callable[..., Any]) -> Any:
        """One layer after another, with dropout between them."""
        states = list(self.hx) if isinstance(self.hx, (list, tuple)) else [self.hx]
        by_layer = list(zip(*(state.chunk(self.num_layers) for state in states), strict=True))
        each, x, reached = len(self.params) // self.num_layers, self.x, []
        for layer, own in enumerate(by_layer):
            given = own if isinstance(self.hx, (list, tuple)) else own[0]
            weights = self.params[layer * each : (layer + 1) * each]
            x = F.dropout(x, self.dropout) if layer else x
            fixed = self.has_biases, 1, 0.0, self.train, self.bidirectional, *self.rest
            x, *last = func(x, *self.sizes, given, weights, *fixed)
            reached.append(last)
        return x, *(torch.cat(parts) for parts in zip(*reached, strict=True))
