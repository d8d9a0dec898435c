"""Lint rules about networks and clip norms: they try the network on synthetic or public records, and leave no trace."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpbnn
from dpbnn.lint import inspect
from tests.lint.test_lint import LEVEL, X, Y, network, norms_between, setup


def test_networks_are_tried_whatever_the_records_come_in():
    mixing = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for x, y in ((X.double().numpy(), Y.numpy()), (X.tolist(), Y.tolist()), (TensorDataset(X, Y), None)):
        assert [own.name for own in inspect(setup(model=mixing, x=x, y=y)) if own.severity == "hole"] == ["records-mix"]
        assert inspect(setup(x=x, y=y)) == []


def test_a_network_with_dropout_draws_its_masks_from_nobodys_generator():
    small = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"clip_norm": 1e-4})
    own = setup(small, model=nn.Sequential(nn.Dropout(0.5), network()), public_data=norms_between())
    before = torch.get_rng_state()
    assert "clip-norm" in [finding.name for finding in inspect(own)]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_clip_norm_far_below_all_gradients_is_found_too():
    small = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"clip_norm": 1e-4})
    assert "clips nearly all" in str(inspect(setup(small, public_data=norms_between())))
