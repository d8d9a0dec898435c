"""Networks of our own have the paper's shapes and are rebuilt from plain settings."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import max_pool2d

import dpbnn
from dpbnn.models.networks import CNN, MLP, NETWORKS, rebuild


def count(network):
    return sum(p.numel() for p in network.parameters())


def test_the_papers_networks_have_the_papers_sizes():
    assert count(CNN()) == 26_010
    assert count(MLP(784, [1200, 1200], 10)) == 784 * 1200 + 1200 + 1200 * 1200 + 1200 + 12_000 + 10
    assert MLP(784, [1200, 1200], 10)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert CNN()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def of_numpy():
    """Numbers as NumPy counts them, which JSON cannot write."""
    two, rate = np.int64(2), np.float32(0.5)
    return [MLP(two, [two], two, dropout=rate), CNN(two, two), dpbnn.with_dropout(MLP(2, [2], 2), rate)]


@pytest.mark.parametrize("network", [MLP(5, [4, 3], 2, "tanh"), MLP(5, [], 2), CNN(3, 7, "tanh"), *of_numpy()])
def test_a_network_is_rebuilt_from_plain_settings(network):
    again = rebuild(type(network).__name__, json.loads(json.dumps(network.settings)))
    again.load_state_dict(network.state_dict())
    assert repr(again) == repr(network)
    assert type(network).__name__ in NETWORKS


@pytest.mark.guarantees("Torch's default generator is left as it was.")
def test_torchs_own_generator_is_left_as_it_was_where_a_release_is_loaded(tmp_path):
    plan = dpbnn.PrivacyPlan(dataset_size=20, batch_size=5, steps=2, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    settings = {"method": dpbnn.SGD(0.1), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    dpbnn.fit(MLP(3, [4], 2), torch.randn(20, 3), torch.arange(20) % 2, **settings).save(tmp_path / "release")
    before = torch.get_rng_state()
    dpbnn.load(tmp_path / "release")
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_settings_get_one_clear_line():
    with pytest.raises(dpbnn.DpbnnError, match="activation must be one of 'relu', 'tanh', got 'gelu'"):
        MLP(3, [4], 2, "gelu")
    with pytest.raises(dpbnn.DpbnnError, match="a layer's width must be >= 1, got 0"):
        MLP(3, [0], 2)
    with pytest.raises(dpbnn.DpbnnError, match="outputs must be >= 1, got 0"):
        CNN(outputs=0)
    with pytest.raises(dpbnn.DpbnnError, match="network must be one of"):
        rebuild("Sequential", {})


@pytest.mark.parametrize("network", [MLP(5, [4, 3], 2, dropout=0.2), CNN(dropout=0.2)])
def test_dropout_follows_every_hidden_activation_and_renames_no_weight(network):
    plain = MLP(5, [4, 3], 2) if isinstance(network, MLP) else CNN()
    assert list(network.state_dict()) == list(plain.state_dict())
    after = [module for module in network.layers if isinstance(module, torch.nn.Sequential)]
    assert [str(part) for part in after] == [str(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.2)))] * len(
        after
    )
    assert len(after) == (2 if isinstance(network, MLP) else 3)
    again = rebuild(type(network).__name__, json.loads(json.dumps(network.settings)))
    assert repr(again) == repr(network)


def test_settings_of_a_network_without_dropout_are_those_of_earlier_releases():
    assert MLP(3, [4], 2).settings == {"inputs": 3, "hidden": [4], "outputs": 2, "activation": "relu"}
    assert repr(rebuild("MLP", MLP(3, [4], 2).settings)) == repr(MLP(3, [4], 2, dropout=0.0))
    assert CNN().settings == {"channels": 1, "outputs": 10, "activation": "relu"}


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan"), "half"])
def test_dropout_outside_zero_to_one_is_refused(dropout):
    with pytest.raises(dpbnn.DpbnnError, match="dropout must be"):
        MLP(3, [4], 2, dropout=dropout)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_papers_cnn_activates_and_pools_as_it_says(activation):
    network, x = CNN(activation=activation), torch.randn(3, 1, 28, 28)
    conv1, conv2, fc1, fc2 = (layer for layer in network.layers if list(layer.parameters()))
    act = getattr(torch, activation)
    hidden = max_pool2d(act(conv2(max_pool2d(act(conv1(x)), 2, 1))), 2, 1)
    assert torch.equal(network(x), fc2(act(fc1(hidden.flatten(1)))))
