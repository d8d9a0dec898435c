"""DP-MC Dropout: DP-SGD on a network whose dropout stays on."""

import pytest
import torch
from torch import nn

import dpbnn

N = 60
X, Y = torch.randn(N, 6, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3
PLAN = dpbnn.PrivacyPlan(N, 15, 6, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)


def network(rate=0.3):
    torch.manual_seed(1)
    layers = [nn.Linear(6, 8), nn.Tanh(), *([nn.Dropout(rate)] if rate else []), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def fit(model, method=None, **options):
    settings = {"likelihood": dpbnn.Categorical(), "plan": PLAN, "method": method or dpbnn.MCDropout(0.1)}
    return dpbnn.fit(model, X, Y, **settings | options)


def test_a_model_without_dropout_is_refused_and_told_how_to_get_it():
    with pytest.raises(dpbnn.DpbnnError, match=r"dpbnn\.with_dropout\(model, rate=0\.1\)"):
        fit(network(rate=0))
    placed = dpbnn.with_dropout(network(rate=0), rate=0.1)
    assert fit(placed).predict(X, num_draws=5).mutual_information.mean() > 0


def test_a_dropout_rate_of_zero_is_no_dropout():
    model = network()
    model[2].p = 0.0
    with pytest.raises(dpbnn.DpbnnError, match="needs a model with dropout layers"):
        fit(model)


def test_without_prior_it_takes_the_steps_of_dp_sgd():
    options = {"unsafe_seed": 3}
    dropout = fit(network(), dpbnn.MCDropout(0.1, dpbnn.Flat()), **options).posterior.weights
    plain = fit(network(), dpbnn.SGD(0.1), **options).posterior.weights
    assert all(torch.equal(dropout[name], plain[name]) for name in plain)


def test_masks_are_drawn_in_training_though_the_model_was_left_in_evaluation_mode():
    training, evaluating = network(), network().eval()
    options = {"unsafe_seed": 3}
    first, second = (fit(model, **options).posterior.weights for model in (training, evaluating))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not evaluating.training  # and is left so


def test_dropout_stays_on_at_prediction_for_this_method_alone():
    release = fit(network())
    first, second = (release.predict(X, num_draws=1, seed=seed).probabilities for seed in (1, 2))
    assert not torch.equal(first, second)
    plain = fit(network(), dpbnn.SGD(0.1))
    assert torch.equal(plain.predict(X).probabilities, plain.predict(X).probabilities)
    assert release.predict(X, num_draws=50).num_draws == 50


def test_our_own_networks_are_rebuilt_with_their_dropout(tmp_path):
    release = fit(dpbnn.networks.MLP(6, [8], 3, dropout=0.4))
    release.save(tmp_path / "release")
    again = dpbnn.load(tmp_path / "release")
    first, second = (r.predict(X, seed=1).probabilities for r in (release, again))
    assert torch.equal(first, second)


def test_a_release_is_not_loaded_into_a_network_without_dropout(tmp_path):
    model = network()
    fit(model).save(tmp_path / "release")

    class Plain(nn.Sequential):
        pass

    bare = Plain(model[0], model[1], nn.Identity(), model[3])
    with pytest.raises(dpbnn.DpbnnError, match="must have the dropout layers"):
        dpbnn.load(tmp_path / "release", bare)


def test_a_network_with_several_kinds_of_dropout_is_used_as_it_is():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            x = x[:, None, :].expand(-1, 4, -1)
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(dim=1))

    assert fit(Mixed()).predict(X, num_draws=5).mutual_information.mean() > 0
