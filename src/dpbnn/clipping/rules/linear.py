"""``y = x W' + b`` on any number of positions: ``dW_i = sum_t g_it x_it'``, ``db_i = sum_t g_it``."""

from collections.abc import Collection

from torch import Tensor, nn

from dpbnn.clipping.forms.per_record import Dense, Outer, PerRecordGradient

__all__ = ["linear_rule"]


def linear_rule(
    module: nn.Linear, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """Positions are all dimensions between the records and the features."""
    records = len(inputs)
    a = inputs.reshape(records, 1, -1, module.in_features)
    g = output_gradients.reshape(records, 1, -1, module.out_features)
    outer = Outer(a, g, module.weight.shape)
    written_out = Outer.is_cheaper_written_out(a.shape[2], module.in_features, module.out_features, records, a.device)
    gradients: dict[str, PerRecordGradient] = {}
    if "weight" in wanted:
        gradients["weight"] = outer.dense() if written_out else outer
    if "bias" in wanted and a.shape[2] == 1:
        # On a GPU both are looked at side by side, and neither may wait for the other.
        gradients["bias"] = Dense(g[:, 0, 0], None if g.is_cuda else outer.norms[1][:, 0, 0])
    elif "bias" in wanted:
        gradients["bias"] = Dense(g.sum(dim=(1, 2)))
    return gradients
