"""Effective sample sizes of chains with a known one, and the warning that goes with small ones."""

import warnings

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.posterior import POSTERIORS, MeanField, WeightSamples
from dpbnn.posterior.effective_sample_size import effective_sample_size, traced_positions


def autoregressive(correlation, length=4000, chains=50, seed=0):
    """``x_t = rho x_(t-1) + e``, worth ``(1 - rho) / (1 + rho)`` of its length."""
    noise = torch.randn(length, chains, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = [noise[0] / (1 - correlation**2) ** 0.5]
    for row in noise[1:]:
        rows.append(correlation * rows[-1] + row)
    return torch.stack(rows)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.97])
def test_the_effective_sample_size_of_an_autoregressive_chain_is_the_known_one(correlation):
    expected = 4000 * (1 - correlation) / (1 + correlation)
    found = float(effective_sample_size(autoregressive(correlation)).median())
    assert 0.8 < found / expected < 1.25


def test_a_drifting_or_constant_chain_is_worth_next_to_nothing():
    drift = torch.linspace(0, 1, 500)[:, None] + 0.01 * torch.randn(500, 1)
    assert effective_sample_size(drift).item() < 10
    assert effective_sample_size(torch.ones(500, 2)).tolist() == [1.0, 1.0]
    assert effective_sample_size(torch.ones(1, 2)).tolist() == [1.0, 1.0]


def test_an_alternating_chain_is_not_worth_more_than_its_length():
    signs = torch.tensor([1.0, -1.0]).repeat(200)[:, None] + 0.1 * torch.randn(400, 1)
    assert effective_sample_size(signs).item() <= 400


def test_traced_weights_are_spread_over_all_of_them():
    shapes = {"large": torch.Size([1000, 10]), "tiny": torch.Size([1]), "medium": torch.Size([3000])}
    positions = traced_positions(shapes)
    assert sum(map(len, positions.values())) == 256
    assert len(positions["large"]) == pytest.approx(256 * 10_000 / 13_001, abs=2)
    assert all(int(p.max()) < shapes[name].numel() for name, p in positions.items() if len(p))
    assert sum(map(len, traced_positions({"w": torch.Size([3])}).values())) == 3


def test_uneven_importance_lowers_the_effective_sample_size():
    samples = {"w": autoregressive(0.0, 400, 20)}
    even, uneven = torch.ones(400), torch.cat([torch.ones(200), 1e-9 * torch.ones(200)])
    ratio = WeightSamples(samples, uneven).effective_sample_size / WeightSamples(samples, even).effective_sample_size
    assert ratio == pytest.approx(0.5, rel=1e-3)


def fit(rate, steps, **options):
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    plan = dpbnn.PrivacyPlan(50, 25, steps, clip_norm=1.0, noise_multiplier=2.0, delta=1e-3)
    method = dpbnn.SGLD(rate, dpbnn.Gaussian(1.0), **options)
    return dpbnn.fit(nn.Linear(3, 2), x, y, method=method, plan=plan, likelihood=dpbnn.Categorical(), unsafe_seed=1)


@pytest.mark.parametrize("keep_as", [dpbnn.KeepSamples(), dpbnn.KeepSummary(rank=2)])
def test_hardly_independent_samples_are_warned_of_and_the_release_says_so(keep_as):
    with pytest.warns(dpbnn.DpbnnWarning, match="worth about"):
        release = fit(1e-4, 200, keep_as=keep_as)
    assert release.settings["kept_samples"] == 100
    assert release.settings["effective_sample_size"] < 30
    assert "hardly moved" in release.settings["warnings"][0]


@pytest.mark.slow
def test_independent_samples_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "weak: large-epsilon")  # so little noise does it take
        release = fit(0.2, 2000, keep_as=dpbnn.KeepSamples(thin=20))
    assert release.settings["effective_sample_size"] > 25
    assert "warnings" not in release.settings


def test_draws_of_a_mean_field_have_its_moments_and_follow_the_seed():
    posterior = MeanField({"w": torch.full((2000,), 3.0)}, {"w": torch.full((2000,), 0.5)})
    draws = torch.stack([weights["w"] for weights in posterior.draw(50, seed=0)])
    assert draws.mean().item() == pytest.approx(3.0, abs=0.01)
    assert draws.std().item() == pytest.approx(0.5, abs=0.005)
    assert torch.equal(draws, torch.stack([weights["w"] for weights in posterior.draw(50, seed=0)]))
    assert not torch.equal(draws[0], next(iter(posterior.draw(1, seed=1)))["w"])
    assert not torch.equal(next(iter(posterior.draw(1, None)))["w"], next(iter(posterior.draw(1, None)))["w"])


def test_every_form_is_registered_by_its_name():
    assert all(form.kind == kind for kind, form in POSTERIORS.items())
    assert [kind for kind, form in POSTERIORS.items() if form.keeps_dropout] == ["dropout_network"]


def test_draws_follow_importance():
    samples = WeightSamples({"w": torch.arange(4.0)[:, None]}, torch.tensor([1.0, 1.0, 6.0, 2.0]))
    counts = torch.zeros(4)
    for seed in range(500):
        for weights in samples.draw(4, seed):
            counts[int(weights["w"])] += 1
    assert (counts / counts.sum()).tolist() == pytest.approx([0.1, 0.1, 0.6, 0.2], abs=0.02)
