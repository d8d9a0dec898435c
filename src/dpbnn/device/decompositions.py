"""Layers with dropout inside, decomposed: fused kernels of CUDA devices draw from the default generator alone.

Attention becomes products and a softmax. Recurrent layers run one after another. The `F.dropout` in between takes a
generator (`dpbnn.device.generators`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["RECURRENT", "DecomposedDropout", "attention", "recurrent"]

RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})


class DecomposedDropout(TorchFunctionMode):
    """Inside, this thread decomposes attention and recurrent layers that draw on a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RECURRENT and args[0].is_cuda and _recurrent_draws(args):
            return recurrent(func, *args)
        if func is F.scaled_dot_product_attention and args[0].is_cuda and _dropout_rate(args, kwargs) > 0:
            return attention(*args, **kwargs)
        if func is F.multi_head_attention_forward and args[0].is_cuda and _draws_unseen(args, kwargs):
            outputs, _ = func(*args, **kwargs | {"need_weights": True})  # which no fused kernel computes
            return outputs, None
        return func(*args, **kwargs)


def _draws_unseen(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether attention draws in a fused kernel, which does not run where the attention weights are wanted too."""
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


def _is_packed(args: tuple[Any, ...]) -> bool:
    """Packed sequences have their sizes in front of the state and end with `bidirectional`; padded, `batch_first`."""
    return isinstance(args[3], (list, tuple))


def _recurrent_draws(args: tuple[Any, ...]) -> bool:
    """Whether there is dropout between layers."""
    num_layers, dropout, train = args[5:8] if _is_packed(args) else args[4:7]
    return train and dropout > 0 and num_layers > 1


def recurrent(func: Callable[..., Any], *args: Any) -> Any:
    """``func(*args)``, one of `RECURRENT`: its layers one after another, with dropout between them."""
    (x, *sizes), rest = (args[:2], args[2:]) if _is_packed(args) else (args[:1], args[1:])
    hx, params, has_biases, num_layers, dropout, *how = rest
    states = [hx] if isinstance(hx, Tensor) else hx
    of_layers = zip(*(state.chunk(num_layers) for state in states), strict=True)
    each, last = len(params) // num_layers, []
    for layer, start in enumerate(of_layers):
        x = F.dropout(x, dropout) if layer else x
        weights = params[layer * each : (layer + 1) * each]
        state = start[0] if isinstance(hx, Tensor) else start
        x, *end = func(x, *sizes, state, weights, has_biases, 1, 0.0, *how)
        last.append(end)
    return x, *(torch.cat(parts) for parts in zip(*last, strict=True))
