"""The predictive distribution and the split of its uncertainty, against formulas."""

import math

import pytest
import torch
from scipy import stats

from dpbnn.predict import ClassPrediction, RealPrediction
from dpbnn.types import DpbnnError


def test_entropy_splits_into_expected_entropy_and_mutual_information():
    draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # two draws that are sure, and disagree
    prediction = ClassPrediction(draws.mean(0), torch.zeros(1), 2)
    assert prediction.entropy.item() == pytest.approx(math.log(2))
    assert prediction.mutual_information.item() == pytest.approx(math.log(2))
    agreed = ClassPrediction(torch.tensor([[0.5, 0.5]]), torch.tensor([math.log(2)]), 2)
    assert agreed.mutual_information.item() == pytest.approx(0.0, abs=1e-7)


def test_regression_splits_into_aleatoric_and_epistemic_variance():
    prediction = RealPrediction(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[[1.0]], [[3.0]]]))
    assert prediction.mean.item() == 1.0
    assert prediction.aleatoric_variance.item() == 2.0
    assert prediction.epistemic_variance.item() == 2.0  # unbiased: ((0-1)^2 + (2-1)^2) / 1
    assert prediction.variance.item() == 4.0
    assert RealPrediction(torch.ones(1, 2, 1), torch.ones(1, 2, 1)).epistemic_variance.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.9999])
def test_intervals_hold_their_share_of_the_mixture(level):
    means, variances = torch.randn(7, 5, 2).double(), torch.rand(7, 5, 2).double() + 0.1
    prediction = RealPrediction(means, variances)
    low, high = prediction.interval(level)
    mixture = stats.norm(means.numpy(), variances.sqrt().numpy())
    inside = mixture.cdf(high.numpy()).mean(0) - mixture.cdf(low.numpy()).mean(0)
    assert inside == pytest.approx(level, abs=1e-6)
    one = RealPrediction(means[:1], variances[:1])
    assert one.quantile(0.9).numpy() == pytest.approx(stats.norm(means[0], variances[0].sqrt()).ppf(0.9), abs=1e-6)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_levels_outside_zero_and_one_are_refused(level):
    with pytest.raises(DpbnnError, match="level must be"):
        RealPrediction(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).interval(level)
