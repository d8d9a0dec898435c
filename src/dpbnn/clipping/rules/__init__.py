"""Per-record gradients of one layer from its input and the gradient of its output.

A rule is a function ``(module, inputs, output_gradients, wanted) -> {parameter: PerRecordGradient}``; `wanted`
names the parameters of the module that are trained. Both tensors have the records first and are float32 or
wider. Adding a layer type is one function and one line in `RULES`; the contract tests pick it up from there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.clipping.forms.per_record import PerRecordGradient
from dpbnn.clipping.rules.conv import conv_rule, patches_ahead
from dpbnn.clipping.rules.embedding import embedding_rule
from dpbnn.clipping.rules.linear import linear_rule
from dpbnn.clipping.rules.normalization import group_norm_rule, instance_norm_rule, layer_norm_rule, rms_norm_rule

__all__ = ["PREPARATIONS", "RULES", "Rule", "rule_for"]

Rule = Callable[..., dict[str, PerRecordGradient]]
"""From a layer, its input, the gradient of its output, the wanted parameters, and what was prepared, if anything."""

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear_rule,
    nn.Conv1d: conv_rule,
    nn.Conv2d: conv_rule,
    nn.Conv3d: conv_rule,
    nn.Embedding: embedding_rule,
    nn.LayerNorm: layer_norm_rule,
    nn.GroupNorm: group_norm_rule,
    nn.InstanceNorm1d: instance_norm_rule,
    nn.InstanceNorm2d: instance_norm_rule,
    nn.InstanceNorm3d: instance_norm_rule,
    nn.RMSNorm: rms_norm_rule,
}

PREPARATIONS: dict[type[nn.Module], Callable[[Any, Tensor, torch.Size], Tensor | None]] = {
    nn.Conv1d: patches_ahead,
    nn.Conv2d: patches_ahead,
    nn.Conv3d: patches_ahead,
}
"""What a rule may be given beside the gradient: made ahead, of a layer's input and the shape of its output."""


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of exactly this type; a subclass may compute something else and has none."""
    is_plain = "forward" not in vars(module) and {name for name, _ in module.named_parameters(recurse=False)} <= {
        "weight",
        "bias",
    }
    return RULES.get(type(module)) if is_plain else None
