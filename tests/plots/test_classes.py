"""Plots of predicted classes show what they were given."""

import io
import math

import pytest
import torch

from dpbnn import metrics, plots
from dpbnn.prediction import ClassPrediction
from tests.plots.pictures import (
    classes,
    lines,
    measured,
    reliability,
)


def test_a_prediction_that_is_too_sure_gives_a_curve_below_the_diagonal():
    for temperature, worst in ((1.0, 12), (4.0, 60)):
        curve = reliability(4000, temperature)
        confidence, accuracy = measured(plots.reliability_diagram(curve)).T
        full = (curve.count > 100)[curve.count > 0].numpy()
        gap = (confidence - accuracy)[full]
        assert abs(gap).max() < worst
        assert (gap.mean() > 15) == (temperature == 4.0)


def test_the_reliability_diagram_says_its_errors_and_skips_empty_bins():
    curve = metrics.classification.reliability_curve([[1.0, 0.0], [0.6, 0.4]], [0, 1], num_bins=10)
    figure = plots.reliability_diagram(curve)
    assert figure.axes[0].get_title("left") == "calibration error 30.0 % (worst bin 60.0 %), n = 2"
    assert measured(figure).tolist() == [[60.0, 0.0], [100.0, 100.0]]
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([0, 0, 0, 0, 0, 50, 0, 0, 0, 50])


def test_points_of_a_reliability_diagram_have_their_intervals_no_line_between_them_and_fade_with_few_records():
    confidence = torch.cat([torch.full((1,), 0.65), torch.full((10,), 0.75), torch.full((40,), 0.85)])
    right = torch.arange(51) % 4 > 0
    curve = metrics.classification.reliability_curve(torch.stack([confidence, 1 - confidence], 1), ~right, num_bins=10)
    axes = plots.reliability_diagram(curve).axes[0]
    bars, points, _ = axes.collections  # the third is for the legend
    low, high = (100 * bound[curve.count > 0] for bound in curve.accuracy_interval)
    drawn = torch.tensor([segment[:, 1].tolist() for segment in bars.get_segments()])
    assert drawn.numpy() == pytest.approx(torch.stack([low, high], 1).numpy())
    for faded in (bars, points):
        assert faded.get_alpha().tolist() == pytest.approx([0.1925, 0.575, 1.0])
    assert [name for name, at in lines(axes).items() if len(at) > 1] == ["perfect calibration"]


def test_the_confidence_histogram_counts_records_and_with_share_each_group_is_100_percent():
    counted = metrics.classification.confidence_histogram([[0.95, 0.05]] * 9 + [[0.55, 0.45]], [0] * 9 + [1])
    correct, wrong = (stairs.get_data().values for stairs in plots.confidence_histogram(counted).axes[0].patches)
    assert (correct.max(), correct.sum(), wrong.max(), wrong.sum()) == (9, 9, 1, 1)
    shares = plots.confidence_histogram(counted, share=True).axes[0]
    assert [stairs.get_data().values.max() for stairs in shares.patches] == [100, 100]
    axes = plots.confidence_histogram(counted).axes[0]
    assert (axes.get_ylabel(), shares.get_ylabel()) == ("records", "share of the group (%)")
    assert all(tick == int(tick) for tick in axes.get_yticks())


def test_the_rejection_diagram_says_how_many_records_there_are():
    axes = plots.rejection_diagram(metrics.uncertainty.rejection_curve([0.1, 0.2, 0.3], [True, True, False])).axes[0]
    assert axes.get_title("left") == f"area under the curve {(2 / 3 + 1 + 1) / 3:.3f}, n = 3"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("records handed to a person (%)", "accuracy on the rest (%)")


def test_the_title_has_the_auroc_of_the_chosen_score():
    ordinary, foreign = classes(), classes(scale=0.5)
    for score in ("entropy", "mutual_information"):
        auroc = metrics.uncertainty.out_of_distribution_auroc(getattr(ordinary, score), getattr(foreign, score))
        axes = plots.out_of_distribution_histogram(ordinary, foreign, score).axes[0]
        assert axes.get_title("left") == f"told apart in {100 * auroc:.1f} % of pairs (AUROC {auroc:.3f})"
        assert axes.get_xlabel() == f"{score.replace('_', ' ')} (nats)"
        for stairs in axes.patches:
            assert stairs.get_data().values.sum() == pytest.approx(100)


def test_only_the_likeliest_classes_are_shown_where_there_are_many():
    logits = torch.zeros(20, 40)
    logits[:, 30] = 3.0
    figure = plots.draw_probabilities(logits.softmax(1), names=[f"class {k}" for k in range(40)])
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(shown) == 12
    assert "class 30" in shown


def test_one_record_and_groups_without_a_record_are_drawn():
    one = metrics.classification.confidence_histogram([[1.0, 0.0]], [0])
    plots.confidence_histogram(one).savefig(io.BytesIO())
    plots.rejection_diagram(metrics.uncertainty.rejection_curve([0.5], [False])).savefig(io.BytesIO())
    plots.reliability_diagram(metrics.classification.reliability_curve([[1.0, 0.0]], [1])).savefig(io.BytesIO())
    plots.draw_probabilities([[1.0, 0.0]]).savefig(io.BytesIO())


def test_a_point_estimate_without_mutual_information_is_drawn():
    certain = ClassPrediction(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0.7, 0.7]), 1)
    axes = plots.out_of_distribution_histogram(certain, certain, "mutual_information").axes[0]
    assert axes.get_title("left") == "told apart in 50.0 % of pairs (AUROC 0.500)"
    assert axes.get_xlim() == pytest.approx((0, math.log(2)))
