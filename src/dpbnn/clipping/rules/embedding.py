"""A table of vectors: ``dW_i[v] = sum of g_it over the positions t of record i that hold the token v``."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from dpbnn.clipping.forms.per_record import PerRecordGradient, SparseRows

__all__ = ["embedding_rule"]


def embedding_rule(
    module: nn.Embedding, inputs: Tensor, output_gradients: Tensor, wanted: Collection[str]
) -> dict[str, PerRecordGradient]:
    """The row of `padding_idx` takes no gradient, as in plain PyTorch."""
    if "weight" not in wanted:
        return {}
    records = len(inputs)
    tokens = inputs.reshape(records, -1).long()
    owners = torch.arange(records, device=tokens.device)[:, None].expand_as(tokens)
    values = output_gradients.reshape(-1, module.embedding_dim)
    if module.padding_idx is not None:
        values = values.masked_fill((tokens.reshape(-1) == module.padding_idx)[:, None], 0.0)
    merged = SparseRows.merged(owners.reshape(-1), tokens.reshape(-1), values, records, module.weight.shape)
    return {"weight": merged}
