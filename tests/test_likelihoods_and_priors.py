"""Likelihoods and priors against `torch.distributions`."""

import math

import pytest
import torch
from torch.distributions import Categorical, Normal

import dpbnn


def test_categorical_is_the_negative_log_probability():
    logits, labels = torch.randn(6, 4), torch.arange(6) % 4
    losses = dpbnn.Categorical().negative_log_likelihood(logits, labels, {})
    assert torch.allclose(losses, -Categorical(logits=logits).log_prob(labels))
    assert torch.allclose(dpbnn.Categorical().predictive(logits, {}).values, logits.softmax(1))


@pytest.mark.parametrize("noise_std", [None, 0.3])
@pytest.mark.parametrize("flat", [True, False])
def test_the_gaussian_is_the_negative_log_density_constants_included(noise_std, flat):
    likelihood = dpbnn.HomoscedasticGaussian(noise_std)
    outputs = torch.randn(5, 1 if flat else 2)
    targets = torch.randn(5) if flat else torch.randn(5, 2)
    weights = {"likelihood.log_std": torch.full((outputs.shape[1],), 0.7)} if noise_std is None else {}
    std = math.exp(0.7) if noise_std is None else noise_std
    expected = -Normal(outputs, std).log_prob(targets.reshape(outputs.shape)).sum(1)
    assert torch.allclose(likelihood.negative_log_likelihood(outputs, targets, weights), expected)
    assert torch.allclose(likelihood.predictive(outputs, weights).variance, torch.full_like(outputs, std**2))
    assert likelihood.initial_weights(2).keys() == ({"likelihood.log_std"} if noise_std is None else set())


def test_losses_of_half_precision_outputs_are_float32():
    half = torch.randn(3, 2).bfloat16()
    assert dpbnn.Categorical().negative_log_likelihood(half, torch.zeros(3).long(), {}).dtype == torch.float32
    assert dpbnn.HomoscedasticGaussian(1.0).negative_log_likelihood(half, half.float(), {}).dtype == torch.float32


@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_a_priors_gradient_is_that_of_its_negative_log_density(scale):
    w = torch.randn(5, requires_grad=True)
    (expected,) = torch.autograd.grad(-Normal(0.0, scale).log_prob(w).sum(), w)
    assert torch.allclose(dpbnn.Gaussian(scale).energy_gradient({"w": w.detach()})["w"], expected)
    assert torch.equal(dpbnn.Flat().energy_gradient({"w": w.detach()})["w"], torch.zeros(5))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, "1", None])
def test_scales_must_be_positive(bad):
    with pytest.raises(dpbnn.DpbnnError, match="scale must be"):
        dpbnn.Gaussian(bad)
    if bad is not None:
        with pytest.raises(dpbnn.DpbnnError, match="noise_std must be"):
            dpbnn.HomoscedasticGaussian(bad)
