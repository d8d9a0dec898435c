"""A summary has the chain's own moments, and valid ones, in memory that does not grow."""

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.posterior import LowRankGaussian
from tests.methods.store.chains import SHAPES, flat_samples, kept


@pytest.mark.parametrize("rank", [1, 4, 8, 30])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_summary_has_the_chains_mean_and_variances_exactly_and_a_valid_diagonal(rank, weighted):
    importance = (lambda step: 1.0 + (step % 3)) if weighted else (lambda step: 1.0)
    posterior = kept(dpbnn.KeepSummary(rank=rank), importance=importance, dtype=torch.float32).posterior({})
    assert isinstance(posterior, LowRankGaussian)
    samples = flat_samples().double()
    share = torch.tensor([importance(step) for step in range(100, 200)], dtype=torch.float64)
    mean = (share @ samples) / share.sum()
    variance = (share @ (samples - mean).square()) / share.sum() * 100 / 99
    flat = {
        part: torch.cat(
            [v.flatten(1 if part == "directions" else 0) for v in getattr(posterior, part).values()], dim=-1
        ).double()
        for part in ("mean", "diagonal", "directions")
    }
    assert torch.allclose(flat["mean"], mean, rtol=1e-5)
    assert (flat["diagonal"] >= 0).all()
    total = flat["diagonal"] + flat["directions"].square().sum(dim=0)
    assert torch.allclose(total, variance, rtol=1e-3)
    assert len(flat["directions"]) <= rank
    uncorrected = variance + flat["directions"].square().sum(dim=0)
    assert not torch.allclose(uncorrected, variance, rtol=0.1)  # the diagonal that forgets what the directions hold


def test_a_summary_holds_the_correlations_that_matter():
    posterior = kept(dpbnn.KeepSummary(rank=4)).posterior({})
    samples = flat_samples().double()
    covariance = torch.cov(samples.T)
    directions = torch.cat([v.flatten(1) for v in posterior.directions.values()], dim=1).double()
    diagonal = torch.cat([v.flatten() for v in posterior.diagonal.values()]).double()
    ours = directions.T @ directions + diagonal.diag()
    assert torch.linalg.matrix_norm(ours - covariance, 2) < 0.02 * torch.linalg.matrix_norm(covariance, 2)
    by_variance_alone = covariance.diagonal().diag()
    assert torch.linalg.matrix_norm(by_variance_alone - covariance, 2) > 0.5 * torch.linalg.matrix_norm(covariance, 2)


def test_draws_of_a_summary_have_its_moments():
    posterior = kept(dpbnn.KeepSummary(rank=4)).posterior({})
    draws = torch.stack([torch.cat([v.flatten() for v in w.values()]) for w in posterior.draw(6000, seed=1)]).double()
    samples = flat_samples().double()
    order = list(SHAPES)
    assert list(next(iter(posterior.draw(1, seed=1)))) == order
    assert torch.allclose(draws.mean(dim=0), samples.mean(dim=0), atol=0.25)
    ratio = draws.var(dim=0) / samples.var(dim=0)
    assert (ratio - 1).abs().max() < 0.1
    assert torch.allclose(torch.cov(draws.T), torch.cov(samples.T), atol=0.06 * float(torch.cov(samples.T).max()))


def test_a_summary_needs_no_more_room_for_a_longer_chain():
    def numbers(steps):
        store = kept(dpbnn.KeepSummary(rank=4, thin=1, burn_in=0), steps)
        return sum(
            v.numel() for part in ("mean", "squares", "directions", "waiting") for v in getattr(store, part).values()
        )

    assert numbers(2000) == numbers(100) <= (1.25 * 4 + 2) * 21


def test_a_summary_of_a_chain_that_diverges_says_so_and_loses_nothing(tmp_path):
    plan = dpbnn.PrivacyPlan(dataset_size=20, batch_size=5, steps=6, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    method = dpbnn.SGLD(1e12, keep_as=dpbnn.KeepSummary(rank=2, burn_in=0))
    settings = {"method": method, "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    with pytest.warns(dpbnn.DpbnnWarning) as said:
        release = dpbnn.fit(nn.Linear(3, 2), torch.randn(20, 3), torch.arange(20) % 2, **settings)
    assert "has diverged" in str(said[-1].message)
    assert release.settings["releases_charged"] == 6
    release.save(tmp_path / "release")
