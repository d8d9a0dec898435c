"""Every way to compute the gradients of a convolution gives those of autograd."""

import pytest
import torch
from torch import nn

from dpbnn.clipping.rules import conv
from tests.clipping.forms.test_per_record import RECORDS, assert_same

CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "1d, stride, dilation and padding": (lambda: nn.Conv1d(3, 4, 3, 2, 2, 2), (3, 9)),
    "2d": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 6, 7)),
    "2d, one place at a time": (lambda: nn.Conv2d(4, 3, 1, stride=2), (4, 7, 5)),
    "2d, leftover rows": (lambda: nn.Conv2d(2, 3, 3, stride=3), (2, 8, 7)),
    "2d, uneven everything": (lambda: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2), (2, 8, 9)),
    "2d, dilation beyond the stride": (lambda: nn.Conv2d(2, 3, 3, stride=2, dilation=3), (2, 11, 10)),
    "2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 5, 5)),
    "2d, circular": (lambda: nn.Conv2d(2, 3, 4, padding="same", padding_mode="circular"), (2, 6, 6)),
    "3d": (lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=1, groups=2), (2, 3, 4, 3)),
}


def per_record_by_autograd(module, x, g):
    rows = [torch.autograd.grad(module(x[[i]]), module.weight, g[[i]])[0] for i in range(len(x))]
    return torch.stack(rows)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("way", [conv._as_products, conv._written_out_by_patches, conv._written_out_by_rows])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_way_of_a_convolution_gives_the_gradients_of_autograd(name, way, layout, monkeypatch):
    make, shape = CONVOLUTIONS[name]
    module, x = make(), torch.randn(RECORDS, *shape)
    g = torch.randn_like(module(x))
    expected = per_record_by_autograd(module, x, g)
    if x.dim() == 4:
        x, g = x.contiguous(memory_format=layout), g.contiguous(memory_format=layout)
    places = g.unflatten(1, (module.groups, -1)).flatten(3)
    with torch.no_grad():
        assert_same(way(module, x, places), expected)
        monkeypatch.setattr(conv, "FEWEST_RECORDS", 2)
        monkeypatch.setattr(conv, "PATCH_NUMBERS", 0)
        assert_same(way(module, x, places), expected)
