"""Figures of predicted real numbers, against uncertainty-toolbox, SciPy and numerical integration."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dpbnn.errors import DpbnnError
from dpbnn.metrics import regression as r
from dpbnn.prediction import RealPrediction


def synthetic(draws=7, records=6, outputs=2):
    means = torch.randn(draws, records, outputs, dtype=torch.float64) * 2
    variances = torch.rand(draws, records, outputs, dtype=torch.float64) + 0.05
    return RealPrediction(means, variances), torch.randn(records, outputs, dtype=torch.float64) * 2


def drawn_from(prediction):
    """Targets that the prediction describes rightly."""
    draw = torch.randint(prediction.num_draws, prediction.mean.shape)[None]
    means, deviations = (v.gather(0, draw)[0] for v in (prediction.means, prediction.variances.sqrt()))
    return means + deviations * torch.randn(means.shape, dtype=means.dtype)


def single_gaussian(records=200):
    prediction, targets = synthetic(1, records, 1)
    return prediction, targets, [v.flatten().numpy() for v in (prediction.mean, prediction.variance.sqrt(), targets)]


def test_one_gaussian_scores_as_in_uncertainty_toolbox():
    from uncertainty_toolbox import metrics_scoring_rule as theirs

    prediction, targets, (mean, deviation, y) = single_gaussian()
    assert r.crps(prediction, targets) == pytest.approx(theirs.crps_gaussian(mean, deviation, y))
    assert r.negative_log_likelihood(prediction, targets) == pytest.approx(theirs.nll_gaussian(mean, deviation, y))


def test_one_gaussian_covers_as_in_uncertainty_toolbox():
    from uncertainty_toolbox import metrics_calibration as theirs

    prediction, targets, (mean, deviation, y) = single_gaussian()
    for level in (0.1, 0.5, 0.95):
        expected = theirs.get_proportion_in_interval(mean, deviation, y, level)
        assert r.coverage(prediction, targets, level) == pytest.approx(expected)
    width = 2 * stats.norm.ppf(0.975) * deviation.mean()
    assert r.interval_width(prediction, 0.95) == pytest.approx(width)


def test_one_gaussian_is_miscalibrated_as_in_uncertainty_toolbox():
    from uncertainty_toolbox import metrics_calibration as theirs

    prediction, targets, (mean, deviation, y) = single_gaussian()
    levels = np.linspace(0, 1, 22)[1:-1].tolist()
    curve = r.coverage_curve(prediction, targets, levels)
    error = theirs.mean_absolute_calibration_error(mean, deviation, y, num_bins=22, prop_type="interval")
    # Theirs has the levels 0 and 1 as well, where there is no error.
    assert curve.calibration_error * 20 / 22 == pytest.approx(error)


@pytest.mark.parametrize("draws", [1, 2, 7])
def test_the_crps_is_the_integral_of_its_definition(draws):
    prediction, targets = synthetic(draws)

    def by_integration(means, deviations, y):
        def below(x):
            return stats.norm.cdf(x, means, deviations).mean()

        left, _ = integrate.quad(lambda x: below(x) ** 2, -30, y, limit=200)
        right, _ = integrate.quad(lambda x: (1 - below(x)) ** 2, y, 30, limit=200)
        return left + right

    expected = [
        by_integration(prediction.means[:, i, o].numpy(), prediction.variances[:, i, o].sqrt().numpy(), targets[i, o])
        for i in range(targets.shape[0])
        for o in range(targets.shape[1])
    ]
    assert r.crps(prediction, targets) == pytest.approx(np.mean(expected), abs=1e-7)


def test_the_log_likelihood_is_that_of_whole_records_under_the_mixture():
    prediction, targets = synthetic()
    densities = stats.norm.pdf(targets.numpy(), prediction.means.numpy(), prediction.variances.sqrt().numpy())
    assert r.negative_log_likelihood(prediction, targets) == pytest.approx(-np.log(densities.prod(2).mean(0)).mean())
    of_separate_outputs = -np.log(densities.mean(0)).sum(1).mean()
    assert r.negative_log_likelihood(prediction, targets) != pytest.approx(of_separate_outputs, rel=0.01)


def test_the_log_likelihood_stays_finite_where_every_density_underflows():
    far = RealPrediction(torch.tensor([[[100.0]], [[-100.0]]]), torch.full((2, 1, 1), 0.01))
    expected = 100**2 / (2 * 0.01) + math.log(2 * math.pi * 0.01) / 2
    assert r.negative_log_likelihood(far, [0.0]) == pytest.approx(expected)


def test_the_error_is_that_of_the_mean():
    prediction, targets = synthetic()
    expected = np.sqrt(np.mean((prediction.means.numpy().mean(0) - targets.numpy()) ** 2))
    assert r.rmse(prediction, targets) == pytest.approx(expected)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
def test_coverage_and_width_are_those_of_the_intervals(level):
    prediction, targets = synthetic(records=300)
    low, high = prediction.interval(level)
    assert r.coverage(prediction, targets, level) == float(((low <= targets) & (targets <= high)).double().mean())
    assert r.interval_width(prediction, level) == pytest.approx(float((high - low).mean()), rel=1e-6)


def test_the_right_spread_is_covered_and_wrong_ones_are_seen():
    apart, _ = synthetic(draws=5, records=4000)
    prediction = RealPrediction(apart.means / 10, apart.variances)
    targets = drawn_from(prediction)
    assert r.coverage_curve(prediction, targets).calibration_error < 0.02
    for factor in (0.25, 4.0):  # deviations half and twice as large
        wrong = RealPrediction(prediction.means, prediction.variances * factor)
        curve = r.coverage_curve(wrong, targets)
        assert curve.calibration_error > 0.1
        assert ((curve.coverage < curve.level) == (factor < 1)).all()
        assert r.crps(wrong, targets) > r.crps(prediction, targets)
        assert r.negative_log_likelihood(wrong, targets) > r.negative_log_likelihood(prediction, targets)


def test_a_coverage_curve_rises_and_has_its_levels():
    curve = r.coverage_curve(*synthetic(records=50))
    assert curve.level.tolist() == pytest.approx([0.05 * k for k in range(1, 20)])
    assert curve.coverage.dtype == torch.float64
    assert (curve.coverage.diff() >= 0).all()


def test_memory_is_bounded_and_parts_change_nothing(monkeypatch):
    prediction, targets = synthetic(draws=20, records=31)
    figures = (r.crps, r.negative_log_likelihood, r.coverage, lambda p, _: r.interval_width(p))
    whole = [figure(prediction, targets) for figure in figures]
    sizes, exact = [], r._mean_absolute
    monkeypatch.setattr(r, "_mean_absolute", lambda m, v: sizes.append(m.numel()) or exact(m, v))
    monkeypatch.setattr(r, "VALUES_AT_A_TIME", 100)
    assert [figure(prediction, targets) for figure in figures] == pytest.approx(whole, rel=1e-12)
    assert max(sizes) <= 100


def test_one_draw_one_record_and_one_output_in_half_the_precision():
    prediction = RealPrediction(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    for targets in ([0.0], [[0.0]], np.zeros(1, dtype="float32"), torch.zeros(1, 1, dtype=torch.int32)):
        assert r.rmse(prediction, targets) == 0.0
        assert r.crps(prediction, targets) == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi))
        assert r.negative_log_likelihood(prediction, targets) == pytest.approx(math.log(2 * math.pi) / 2)
        assert r.coverage(prediction, targets, 0.01) == 1.0


def test_the_crps_of_a_nearly_certain_prediction_is_its_absolute_error():
    certain = RealPrediction(torch.full((3, 2, 1), 1.0), torch.full((3, 2, 1), 1e-12))
    assert r.crps(certain, [1.5, 0.0]) == pytest.approx(0.75, abs=1e-5)
    assert r.crps(certain, [1.0, 1.0]) == pytest.approx(0.0, abs=1e-6)


FINE = RealPrediction(torch.zeros(2, 3, 2), torch.ones(2, 3, 2))


@pytest.mark.parametrize(
    ("prediction", "targets", "message"),
    [
        (FINE, torch.zeros(4, 2), "each of the 3 records, got 4"),
        (FINE, torch.zeros(3), r"of shape \[3, 2\].*got torch.float32 of shape \[3\]"),
        (FINE, torch.zeros(3, 2, dtype=torch.bool), "torch.bool"),
        (FINE, torch.zeros(3, 2, dtype=torch.complex64), "complex"),
        (FINE, torch.full((3, 2), math.nan), "with NaN"),
        (RealPrediction(torch.zeros(2, 3), torch.ones(2, 3)), torch.zeros(3), r"shape \[draws, records, outputs\]"),
        (RealPrediction(torch.zeros(2, 3, 1), torch.ones(1, 3, 1)), torch.zeros(3), "of one shape"),
        (RealPrediction(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)), torch.zeros(3), "variances > 0"),
        (RealPrediction(torch.full((2, 3, 1), math.nan), torch.ones(2, 3, 1)), torch.zeros(3), "finite means"),
    ],
)
def test_what_does_not_fit_is_refused(prediction, targets, message):
    for figure in (r.rmse, r.crps, r.negative_log_likelihood, r.coverage, r.coverage_curve):
        with pytest.raises(DpbnnError, match=message):
            figure(prediction, targets)


def test_a_width_needs_a_prediction_in_order_and_levels_lie_between_zero_and_one():
    with pytest.raises(DpbnnError, match="variances > 0"):
        r.interval_width(RealPrediction(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)))
    for level in (0.0, 1.0, 95):
        with pytest.raises(DpbnnError, match="level must be > 0 and < 1"):
            r.coverage(FINE, torch.zeros(3, 2), level)
        with pytest.raises(DpbnnError, match="level must be > 0 and < 1"):
            r.interval_width(FINE, level)
