"""Gaussian likelihoods against `torch.distributions`, and their limits."""

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import distributions

import dpbnn
from dpbnn.models.likelihoods import LOG_STD_RANGE, HeteroscedasticGaussian, HomoscedasticGaussian


@pytest.mark.parametrize("noise_std", [None, 0.3])
@pytest.mark.parametrize("flat", [True, False])
def test_the_gaussian_is_the_negative_log_density_constants_included(noise_std, flat):
    likelihood = HomoscedasticGaussian(noise_std)
    outputs = torch.randn(5, 1 if flat else 2)
    targets = torch.randn(5) if flat else torch.randn(5, 2)
    weights = {"likelihood.log_std": torch.full((outputs.shape[1],), 0.7)} if noise_std is None else {}
    std = math.exp(0.7) if noise_std is None else noise_std
    expected = -distributions.Normal(outputs, std).log_prob(targets.reshape(outputs.shape)).sum(1)
    assert torch.allclose(likelihood.negative_log_likelihood(outputs, targets, weights), expected)
    assert torch.allclose(likelihood.predictive(outputs, weights).variance, torch.full_like(outputs, std**2))
    assert likelihood.initial_weights(2).keys() == ({"likelihood.log_std"} if noise_std is None else set())


def test_a_noise_level_of_numpy_can_be_written_to_a_release():
    assert json.loads(json.dumps(HomoscedasticGaussian(np.float32(0.5)).noise_std)) == 0.5


@pytest.mark.parametrize("width", [1, 3])
def test_the_heteroscedastic_gaussian_is_the_negative_log_density(width):
    outputs, targets = torch.randn(7, 2 * width).double(), torch.randn(7, width).double()
    mean, std = outputs[:, :width], outputs[:, width:].exp()
    losses = HeteroscedasticGaussian().negative_log_likelihood(outputs, targets, {})
    by_scipy = -scipy.stats.norm.logpdf(targets.numpy(), mean.numpy(), std.numpy()).sum(1)
    assert losses.tolist() == pytest.approx(by_scipy.tolist())
    wrong = -scipy.stats.norm.logpdf(targets.numpy(), mean.numpy(), std.sqrt().numpy()).sum(1)  # log variance instead
    assert losses.tolist() != pytest.approx(wrong.tolist(), rel=0.01)
    moments = HeteroscedasticGaussian().predictive(outputs, {})
    assert torch.equal(moments.mean, mean)
    assert torch.allclose(moments.variance, std.square())
    if width == 1:
        assert torch.equal(HeteroscedasticGaussian().negative_log_likelihood(outputs, targets[:, 0], {}), losses)


@pytest.mark.parametrize("far", [20.0, -20.0, 1e30, -1e30])
def test_no_log_standard_deviation_makes_loss_or_prediction_overflow(far):
    outputs = torch.tensor([[0.5, far]], requires_grad=True)
    loss = HeteroscedasticGaussian().negative_log_likelihood(outputs, torch.tensor([1.0]), {})
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    variance = HeteroscedasticGaussian().predictive(outputs.detach(), {}).variance
    assert variance.tolist() == [[pytest.approx(math.exp(2 * LOG_STD_RANGE[far > 0]), rel=1e-5)]]
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, "1"])
def test_a_noise_level_must_be_positive(bad):
    with pytest.raises(dpbnn.DpbnnError, match="noise_std must be"):
        HomoscedasticGaussian(bad)
