"""Decomposed attention and recurrent layers are what torch computes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpbnn.device.decompositions import RECURRENT, attention, recurrent

SEQUENCES = torch.arange(3.0 * 5 * 8).reshape(3, 5, 8) / 60


class Layered(TorchFunctionMode):
    """Runs recurrent layers one by one, as on a CUDA device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return recurrent(func, *args) if func in RECURRENT else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_one_by_one_are_the_whole(kind, bidirectional, packed):
    layer = kind(8, 6, num_layers=3, batch_first=True, bidirectional=bidirectional)
    x = nn.utils.rnn.pack_padded_sequence(SEQUENCES, [5, 4, 2], batch_first=True) if packed else SEQUENCES
    whole = layer(x)
    with Layered():
        parts = layer(x)
    for one, other in zip(tree_leaves(whole), tree_leaves(parts), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_between_recurrent_layers_is_drawn():
    layer = nn.GRU(8, 6, num_layers=2, dropout=0.5, batch_first=True)
    with Layered():
        assert not torch.equal(layer(SEQUENCES)[0], layer(SEQUENCES)[0])


@pytest.mark.parametrize("how", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.rand(5, 5) > 0.3}])
def test_decomposed_attention_is_attention(how):
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    torch.testing.assert_close(attention(q, k, v, **how), F.scaled_dot_product_attention(q, k, v, **how))
    torch.testing.assert_close(
        attention(q, k[:, :2], v[:, :2], enable_gqa=True),
        F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    )
