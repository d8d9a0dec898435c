"""What a prediction says: the split of its uncertainty, intervals and samples, against formulas."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpbnn.errors import DpbnnError
from dpbnn.prediction import ClassPrediction, RealPrediction
from dpbnn.prediction.prediction import entropy, joined


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


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 100.0])
def test_entropies_stay_in_their_range_and_mutual_information_is_never_negative(classes, scale):
    draws = (scale * torch.randn(5, 200, classes)).softmax(dim=-1)
    prediction = ClassPrediction(draws.mean(dim=0), entropy(draws).mean(dim=0), num_draws=5)
    for values in (prediction.entropy, prediction.expected_entropy):
        assert values.min() >= 0
        assert values.max() <= torch.tensor(math.log(classes))
    assert prediction.mutual_information.min() >= 0
    exact = stats.entropy(draws.mean(dim=0).double().numpy(), axis=1)
    assert prediction.entropy.numpy() == pytest.approx(exact, abs=1e-5 * math.log(classes))
    assert entropy(torch.eye(classes)).tolist() == [0.0] * classes


def test_epistemic_variance_is_right_when_means_are_large():
    means = 1e6 + torch.randn(50, 20, 1)
    prediction = RealPrediction(means, torch.ones_like(means))
    exact = np.var(means.double().numpy(), axis=0, ddof=1)
    assert prediction.epistemic_variance.numpy() == pytest.approx(exact, rel=1e-6)
    assert prediction.epistemic_variance.numpy() != pytest.approx(np.var(means.double().numpy(), axis=0), rel=1e-3)
    assert prediction.mean.double().numpy() == pytest.approx(means.double().numpy().mean(axis=0), rel=1e-7)
    far = RealPrediction(means.double() + 1e12, torch.ones(50, 20, 1))
    assert far.epistemic_variance.numpy() == pytest.approx(exact, rel=1e-3)


def test_sampled_labels_have_the_averaged_probabilities():
    prediction = ClassPrediction(torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]]), torch.zeros(2), 3)
    samples = prediction.sample(20_000, seed=0)
    assert samples.shape == (20_000, 2)
    counts = torch.bincount(samples[:, 0], minlength=3).numpy()
    assert stats.chisquare(counts, 20_000 * np.array([0.2, 0.3, 0.5])).pvalue > 1e-4
    assert stats.chisquare(counts, 20_000 * np.array([0.22, 0.3, 0.48])).pvalue < 1e-4
    assert samples[:, 1].unique().tolist() == [1]
    assert torch.equal(samples, prediction.sample(20_000, seed=0))
    assert not torch.equal(samples, prediction.sample(20_000))
    assert ClassPrediction(torch.ones(0, 3), torch.ones(0), 1).sample(4).shape == (4, 0)


def test_sampled_reals_follow_the_mixture():
    means, variances = torch.tensor([[[0.0]], [[3.0]]]), torch.tensor([[[1.0]], [[0.25]]])
    prediction = RealPrediction(means, variances)
    samples = prediction.sample(4000, seed=0)
    assert samples.shape == (4000, 1, 1)

    def distribution(values):
        return (stats.norm(0, 1).cdf(values) + stats.norm(3, 0.5).cdf(values)) / 2

    def one_gaussian(values):
        return stats.norm(1.5, prediction.variance.sqrt().item()).cdf(values)

    assert stats.kstest(samples.flatten().numpy(), distribution).pvalue > 1e-4
    assert stats.kstest(samples.flatten().numpy(), one_gaussian).pvalue < 1e-4


def test_a_sample_takes_one_draw_of_the_weights_for_all_records():
    means = torch.tensor([0.0, 100.0])[:, None, None].expand(2, 5, 2)
    samples = RealPrediction(means, torch.ones(2, 5, 2)).sample(50, seed=1)
    of_second = samples > 50
    assert (of_second == of_second[:, :1, :1]).all()
    assert 10 < of_second[:, 0, 0].sum() < 40
    assert len(samples.unique()) == 500  # noise is each output's own


def test_sampling_leaves_the_callers_generator_alone_and_refuses_nonsense():
    prediction = ClassPrediction(torch.tensor([[0.5, 0.5], [math.nan, math.nan]]), torch.zeros(2), 1)
    before = torch.get_rng_state()
    RealPrediction(torch.ones(1, 2, 1), torch.ones(1, 2, 1)).sample(3)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(DpbnnError, match="those of record 1 are not"):
        prediction.sample(3)
    with pytest.raises(DpbnnError, match="num_samples must be >= 1"):
        prediction.sample(0)
    with pytest.raises(DpbnnError, match="seed must be >= 0"):
        RealPrediction(torch.ones(1, 2, 1), torch.ones(1, 2, 1)).sample(1, seed=-1)
    with pytest.raises(DpbnnError, match=r"seed must be < 2\*\*63"):
        RealPrediction(torch.ones(1, 2, 1), torch.ones(1, 2, 1)).sample(1, seed=2**64)


def test_predictions_for_consecutive_records_join_to_one():
    parts = [
        ClassPrediction(torch.rand(n, 3), torch.rand(n), 4, requested_draws=9, draws=torch.rand(4, n, 3))
        for n in (2, 3)
    ]
    whole = joined(parts)
    assert torch.equal(whole.probabilities[2:], parts[1].probabilities)
    assert torch.equal(whole.draws[:, 2:], parts[1].draws)
    assert (whole.num_draws, whole.requested_draws) == (4, 9)
    reals = [RealPrediction(torch.rand(4, n, 2), torch.rand(4, n, 2), requested_draws=9) for n in (2, 3)]
    assert torch.equal(joined(reals).variances[:, :2], reals[0].variances)
    assert (joined(reals).num_draws, joined(reals).requested_draws) == (4, 9)
