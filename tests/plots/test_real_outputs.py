"""Plots of predicted real outputs show what they were given."""

import torch

from dpbnn import metrics, plots
from dpbnn.prediction import RealPrediction
from tests.plots.pictures import bands, lines, real


def test_the_sides_of_the_coverage_diagram_are_named():
    curve = metrics.regression.coverage_curve(real(), torch.zeros(50))
    at = {text.get_text(): text.get_position() for text in plots.coverage_diagram(curve).axes[0].texts}
    assert at["too cautious"][1] > at["too cautious"][0]
    assert at["too sure"][1] < at["too sure"][0]


def test_intervals_too_narrow_give_a_coverage_below_the_diagonal():
    prediction = RealPrediction(torch.zeros(1, 2000, 1), torch.full((1, 2000, 1), 0.04))
    curve = metrics.regression.coverage_curve(prediction, torch.randn(2000))
    drawn = lines(plots.coverage_diagram(curve).axes[0])["measured"]
    assert (drawn[:, 1] < drawn[:, 0]).all()
    assert drawn[-1, 1] < 45


def test_the_band_of_the_means_lies_inside_that_of_new_targets():
    outer, inner = (band.get_paths()[0].get_extents() for band in bands().axes[0].collections)
    assert outer.y0 < inner.y0 < inner.y1 < outer.y1
    one_draw = plots.regression_bands([0.0, 1.0], RealPrediction(torch.zeros(1, 2, 1), torch.ones(1, 2, 1)))
    assert len(one_draw.axes[0].collections) == 1


def test_inputs_in_any_order_are_drawn_from_left_to_right():
    prediction = RealPrediction(torch.tensor([[[3.0], [1.0], [2.0]]]), torch.ones(1, 3, 1))
    drawn = lines(plots.regression_bands([[3.0], [1.0], [2.0]], prediction).axes[0])["mean"]
    assert drawn.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert bands(labels=("dose (mg)", "response (mmol/l)")).axes[0].get_xlabel() == "dose (mg)"
