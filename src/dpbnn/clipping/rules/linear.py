"""``y = x W' + b`` on any number of positions: ``dW_i = sum_t g_it x_it'``, ``db_i = sum_t g_it``."""

from collections.abc import Collection

from torch import Tensor, nn

from dpbnn.clipping.per_record import Dense, Outer, PerRecordGradient

__all__ = ["linear_rule"]


def linear_rule(
    module: nn.Linear, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """Positions are all dimensions between the records and the features."""
    records = len(inputs)
    a = inputs.reshape(records, 1, -1, module.in_features)
    g = output_gradients.reshape(records, 1, -1, module.out_features)
    gradients: dict[str, PerRecordGradient] = {}
    if "weight" in wanted:
        outer = Outer(a, g, module.weight.shape)
        written_out = Outer.is_cheaper_written_out(a.shape[2], module.in_features, module.out_features)
        gradients["weight"] = outer.dense() if written_out else outer
    if "bias" in wanted:
        gradients["bias"] = Dense(g[:, 0, 0] if g.shape[2] == 1 else g.sum(dim=(1, 2)))
    return gradients
