"""Layer rules: per-record gradients of one layer from its inputs and the gradient of its output.

`RULES` has one line for each type of layer. `docs/extending.md` shows a complete rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.clipping.forms.per_record import PerRecordGradient
from dpbnn.clipping.rules.conv import conv_rule, patches_ahead
from dpbnn.clipping.rules.embedding import embedding_rule
from dpbnn.clipping.rules.linear import linear_rule
from dpbnn.clipping.rules.normalization import group_norm_rule, instance_norm_rule, layer_norm_rule, rms_norm_rule

__all__ = ["RULES", "LayerRule", "rule_for"]


@dataclass(frozen=True)
class LayerRule:
    """The rule of one type of layer.

    Args:
        gradients: ``(layer, *inputs, output_gradients, wanted) -> {parameter: PerRecordGradient}``. `inputs` are the
            tensors that the layer was called with. All tensors have the records first, at least one record, and are
            float32 or wider, or whole numbers. `wanted` names the parameters that are trained.
        parameters: all parameters that the rule knows; a layer that has others is left to another engine.
        any_layout: the rule takes any dimensions between the records and the features. It then also serves a layer
            that is called with the sequence first, with records and positions merged, or without records.
        prepare: ``(layer, input, shape of the output) -> Tensor | None``, for layers with one input: makes ahead of the
            backward pass what `gradients` is then given as its last argument.
    """

    gradients: Callable[..., dict[str, PerRecordGradient]]
    parameters: tuple[str, ...] = ("weight", "bias")
    any_layout: bool = False
    prepare: Callable[[Any, Tensor, torch.Size], Tensor | None] | None = None


_CONVOLUTION = LayerRule(conv_rule, prepare=patches_ahead)
_INSTANCE_NORM = LayerRule(instance_norm_rule)

RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LayerRule(linear_rule, any_layout=True),
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.Embedding: LayerRule(embedding_rule, any_layout=True),
    nn.LayerNorm: LayerRule(layer_norm_rule, any_layout=True),
    nn.GroupNorm: LayerRule(group_norm_rule),
    nn.InstanceNorm1d: _INSTANCE_NORM,
    nn.InstanceNorm2d: _INSTANCE_NORM,
    nn.InstanceNorm3d: _INSTANCE_NORM,
    nn.RMSNorm: LayerRule(rms_norm_rule, any_layout=True),
}


def rule_for(module: nn.Module) -> LayerRule | None:
    """The rule of exactly this type, if it knows all parameters; a subclass may compute something else and has none."""
    rule = RULES.get(type(module))
    if rule is None or "forward" in vars(module):
        return None
    return rule if {name for name, _ in module.named_parameters()} <= set(rule.parameters) else None
