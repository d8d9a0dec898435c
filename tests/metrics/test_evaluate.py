"""All figures at once, and clear words where prediction and answers do not fit."""

import math

import pytest
import torch

from dpbnn import metrics
from dpbnn.errors import DpbnnError
from dpbnn.prediction import ClassPrediction, RealPrediction


def class_prediction(records=40):
    draws = torch.randn(8, records, 3).mul(2).softmax(-1)
    return ClassPrediction(draws.mean(0), torch.special.entr(draws).sum(-1).mean(0), 8)


def test_classes_get_every_figure_as_a_float():
    prediction, y = class_prediction(), torch.randint(3, (40,))
    figures = metrics.evaluate(prediction, y)
    p = prediction.probabilities
    assert figures == {
        "accuracy": metrics.classification.accuracy(p, y),
        "negative_log_likelihood": metrics.classification.negative_log_likelihood(p, y),
        "brier_score": metrics.classification.brier_score(p, y),
        "expected_calibration_error": metrics.classification.expected_calibration_error(p, y),
        "maximum_calibration_error": metrics.classification.maximum_calibration_error(p, y),
        "adaptive_calibration_error": metrics.classification.adaptive_calibration_error(p, y),
        **metrics.uncertainty.mean_uncertainty(prediction),
        "rejection_area": metrics.uncertainty.rejection_curve(prediction.entropy, prediction.labels == y).area,
    }
    assert all(type(value) is float for value in figures.values())


def test_real_outputs_get_every_figure_as_a_float():
    prediction, y = RealPrediction(torch.randn(5, 30, 2), torch.rand(5, 30, 2) + 0.1), torch.randn(30, 2)
    figures = metrics.evaluate(prediction, y)
    assert figures == {
        "rmse": metrics.regression.rmse(prediction, y),
        "negative_log_likelihood": metrics.regression.negative_log_likelihood(prediction, y),
        "crps": metrics.regression.crps(prediction, y),
        "coverage_95": metrics.regression.coverage(prediction, y, 0.95),
        "interval_width_95": metrics.regression.interval_width(prediction, 0.95),
        "coverage_calibration_error": metrics.regression.coverage_curve(prediction, y).calibration_error,
        **metrics.uncertainty.mean_uncertainty(prediction),
    }
    assert all(type(value) is float for value in figures.values())


def test_one_record_is_enough():
    assert metrics.evaluate(class_prediction(1), [2])["accuracy"] in (0.0, 1.0)
    assert metrics.evaluate(RealPrediction(torch.zeros(1, 1, 1), torch.ones(1, 1, 1)), [3.0])["rmse"] == 3.0


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1], "each of the 40 records, got 2"),
        ([0.5] * 40, "whole numbers"),
        ([7] * 40, "0 to 2, the 3 classes"),
        (None, "must hold numbers"),
    ],
)
def test_answers_that_do_not_fit_are_refused(y, message):
    with pytest.raises(DpbnnError, match=message):
        metrics.evaluate(class_prediction(), y)


def test_what_is_no_prediction_is_refused_with_a_way_out():
    with pytest.raises(DpbnnError, match=r"got Tensor; for plain probabilities use .*metrics\.classification"):
        metrics.evaluate(torch.ones(3, 2), [0, 1, 1])


def test_a_prediction_of_classes_is_refused_by_figures_of_real_outputs():
    for figure in (metrics.regression.rmse, metrics.regression.crps, metrics.regression.coverage_curve):
        with pytest.raises(DpbnnError, match=r"RealPrediction.* got ClassPrediction; .*metrics\.classification"):
            figure(class_prediction(), torch.zeros(40))


def test_a_network_that_diverged_is_refused():
    with pytest.raises(DpbnnError, match="diverged"):
        metrics.evaluate(ClassPrediction(torch.full((2, 2), math.nan), torch.zeros(2), 1), [0, 1])
    with pytest.raises(DpbnnError, match="diverged"):
        metrics.evaluate(RealPrediction(torch.full((1, 2, 1), math.nan), torch.ones(1, 2, 1)), [0.0, 1.0])


def test_the_docstring_says_that_figures_are_outside_the_guarantee():
    assert "no noise on them and are outside the guarantee" in metrics.evaluate.__doc__
