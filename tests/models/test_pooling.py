"""Max pooling is torch's, number for number: on a GPU, and elsewhere in Triton's interpreter."""

import math
from functools import partial

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import max_pool2d

from dpbnn.models import pooling
from dpbnn.models.networks import CNN
from dpbnn.models.pooling import MaxPool2d
from tests.devices import KERNEL_DEVICES

pytest.importorskip("triton")

pytestmark = pytest.mark.parametrize("device", KERNEL_DEVICES)


@pytest.fixture(autouse=True)
def _used_everywhere(monkeypatch):
    monkeypatch.setattr(pooling, "_is_fit", lambda values: True)


def reference(x, size, stride, rectify):
    return max_pool2d(x.relu() if rectify else x, size, stride)


def with_ties(device, *shape, dtype=torch.float32):
    return torch.randn(*shape).mul(4).round().div(4).to(device, dtype)


def twice(x):
    """Two copies that gather gradients."""
    return x.clone().requires_grad_(), x.clone().requires_grad_()


SHAPES = [((2, 3, 14, 14), 2, 1), ((4, 5, 6), 2, 2), ((1, 2, 7, 9), 3, 2), ((3, 1, 5, 5), 2, 3), ((2, 1, 4, 4), 4, 1)]


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(("shape", "size", "stride"), SHAPES)
def test_outputs_and_gradients_are_torchs(device, shape, size, stride, rectify):
    ours, truth = twice(with_ties(device, *shape))
    pooled, expected = MaxPool2d(size, stride)(ours, rectify), reference(truth, size, stride, rectify)
    assert torch.equal(pooled, expected)
    weights = torch.randn_like(expected)
    (pooled * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, truth.grad, rtol=1e-6, atol=1e-6)
    assert torch.equal(ours.grad == 0, truth.grad == 0)
    with torch.no_grad():
        assert torch.equal(MaxPool2d(size, stride)(ours, rectify), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_stay_what_they_are(device, dtype):
    ours, truth = twice(with_ties(device, 2, 2, 5, 5, dtype=dtype))
    pooled, expected = MaxPool2d(2, 1)(ours, rectify=True), reference(truth, 2, 1, True)
    assert pooled.dtype == dtype
    assert torch.equal(pooled, expected)
    pooled.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, truth.grad)


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_goes_where_torch_lets_it_go(device, odd, rectify):
    x = with_ties(device, 2, 2, 5, 5)
    x[0, 0, 2, 3] = x[1, 1] = odd
    ours, truth = twice(x)
    pooled, expected = MaxPool2d(2, 1)(ours, rectify), reference(truth, 2, 1, rectify)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=0, equal_nan=True)
    pooled.backward(torch.ones_like(pooled))
    expected.backward(torch.ones_like(expected))
    assert torch.equal(ours.grad, truth.grad)


def test_no_records_give_no_records(device):
    x = torch.zeros(0, 2, 5, 5, device=device, requires_grad=True)
    pooled = MaxPool2d(2, 1)(x)
    assert pooled.shape == (0, 2, 4, 4)
    pooled.sum().backward()
    assert x.grad.shape == x.shape


def test_strides_do_not_matter(device):
    x = with_ties(device, 2, 5, 5, 3).permute(0, 3, 1, 2)
    assert torch.equal(MaxPool2d(2, 1)(x), max_pool2d(x, 2, 1))


def test_under_vmap_each_has_its_own_gradient(device):
    layer, x = partial(MaxPool2d(2, 1), rectify=True), with_ties(device, 3, 4, 2, 5, 5)
    along = vmap(layer, in_dims=1, out_dims=1)(x)
    assert torch.equal(along, reference(x.flatten(0, 1), 2, 1, True).unflatten(0, (3, 4)))
    ours = vmap(grad(lambda one: layer(one).square().sum()))(x)
    truth = vmap(grad(lambda one: reference(one, 2, 1, True).square().sum()))(x)
    torch.testing.assert_close(ours, truth)
    shared = vmap(grad(lambda one, w: (layer(one) * w).sum()), in_dims=(None, 0))(
        x[0], torch.randn(3, 4, 2, 4, 4, device=device)
    )
    assert shared.shape == (3, 4, 2, 5, 5)


def test_vmap_within_vmap_without_gradients(device):
    x = with_ties(device, 2, 3, 4, 5, 5)
    with torch.no_grad():
        found = vmap(vmap(MaxPool2d(2, 1)))(x)
    assert torch.equal(found, max_pool2d(x.flatten(0, 2), 2, 1).unflatten(0, (2, 3, 4)))


def test_a_window_larger_than_the_input_is_refused_as_torch_does(device):
    with pytest.raises(RuntimeError, match="too small"):
        MaxPool2d(3, 3)(torch.zeros(1, 1, 2, 5, device=device))


def test_second_derivatives_are_refused_with_a_word(device):
    x = with_ties(device, 1, 1, 4, 4).requires_grad_()
    (first,) = torch.autograd.grad(MaxPool2d(2, 1)(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        first.sum().backward()


def test_large_windows_are_left_to_torch(device, monkeypatch):
    monkeypatch.setattr(pooling, "_Pooled", None)
    x = with_ties(device, 1, 1, 20, 20)
    assert torch.equal(MaxPool2d(16, 2)(x), max_pool2d(x, 16, 2))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_network_of_the_paper_cuts_and_pools_as_it_says(device, activation):
    network, x = CNN(activation=activation).to(device), torch.randn(3, 1, 28, 28, device=device)
    conv1, conv2, fc1, fc2 = (layer for layer in network.layers if list(layer.parameters()))
    cut = getattr(torch, activation)
    hidden = max_pool2d(cut(conv2(max_pool2d(cut(conv1(x)), 2, 1))), 2, 1)
    torch.testing.assert_close(network(x), fc2(cut(fc1(hidden.flatten(1)))), rtol=1e-5, atol=1e-6)
