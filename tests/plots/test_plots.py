"""Every public plot is tried; what cannot be drawn is refused."""

import math

import pytest
import torch

import dpbnn
from dpbnn import plots
from dpbnn.errors import DpbnnError
from tests.plots.pictures import (
    PLOTS,
    bands,
    classes,
    lines,
    real,
)


def test_every_public_plot_is_tried_here():
    assert set(PLOTS) == set(plots.__all__)


def test_a_sticky_chain_is_worth_less_than_its_length():
    independent = torch.randn(1000, 1)
    drifting = torch.randn(1000, 1).cumsum(0)
    figure = plots.chain_trace(torch.cat([independent, drifting], 1), names=["free", "stuck"])
    worth = {label.split(":")[0]: float(label.split("ESS ")[1]) for label in lines(figure.axes[0])}
    assert worth["free"] > 700
    assert worth["stuck"] < 50
    median = worth["stuck"]  # the lower one of two, as torch has it
    assert figure.axes[0].get_title("left") == f"1,000 samples, worth {median:.0f} independent ones (median)"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.draw_probabilities([[2.0, 1.0]]), "must lie in 0 to 1"),
        (lambda: plots.draw_probabilities([[math.nan, 1.0]]), "must lie in 0 to 1"),
        (lambda: plots.draw_probabilities([[0.5, 0.5]], names=["one"]), "one name for each of 2, got 1"),
        (lambda: plots.chain_trace([1.0, 2.0]), r"\[samples, coordinates\]"),
        (lambda: plots.out_of_distribution_histogram(classes(), classes(), "doubt"), "score must be one of"),
        (lambda: plots.out_of_distribution_histogram(classes(), real()), "foreign must be a ClassPrediction"),
        (lambda: plots.regression_bands([1.0], real()), "each of the 50 records, got 1 rows; .* release.predict"),
        (lambda: plots.regression_bands(torch.ones(50, 3), real()), r"x must be one column.*\[50, 3\].* others fixed"),
        (lambda: plots.regression_bands(torch.ones(50), classes(50)), "must be a RealPrediction.* got ClassPrediction"),
        (lambda: bands(data=(torch.ones(4, 2), torch.ones(4))), r"data\[0\] must be one column"),
        (lambda: bands(data=(torch.ones(4), torch.ones(4, 2))), r"data\[1\] must be one column"),
        (lambda: bands(output=1), "output must be below 1"),
        (lambda: bands(level=95), "level must be > 0 and < 1"),
        (lambda: bands(data=[1.0]), "data must be a pair"),
        (lambda: bands(data=([1.0, 2.0], [1.0])), "each of the 2 records"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(DpbnnError, match=message):
        draw()


FIRST = {
    plots.reliability_diagram: ("reliability_curve(prediction.probabilities, y)", classes),
    plots.confidence_histogram: ("confidence_histogram(prediction.probabilities, y)", classes),
    plots.rejection_diagram: ("rejection_curve(prediction.entropy, prediction.labels == torch.as_tensor(y))", classes),
    plots.coverage_diagram: ("coverage_curve(prediction, y)", real),
}


@pytest.mark.parametrize("plot", FIRST, ids=lambda plot: plot.__name__)
def test_a_prediction_in_place_of_a_result_is_refused_with_a_call_that_works(plot):
    call, make = FIRST[plot]
    prediction = make()
    with pytest.raises(DpbnnError, match=f"got {type(prediction).__name__}") as refused:
        plot(prediction)
    advice = str(refused.value).split("first: ")[1]
    assert advice.startswith("dpbnn.metrics.")
    assert advice.endswith(call)
    y = [0.0] * 50 if make is real else [0] * 400
    plot(eval(advice, {"dpbnn": dpbnn, "torch": torch, "prediction": prediction, "y": y}))
