"""Whether uncertainty is where it belongs, against torchmetrics, SciPy and all orders of the ties."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpbnn.errors import DpbnnError
from dpbnn.metrics.uncertainty import mean_uncertainty, out_of_distribution_auroc, rejection_curve
from dpbnn.prediction import ClassPrediction, RealPrediction


def test_the_auroc_is_that_of_torchmetrics():
    from torchmetrics.functional.classification import binary_auroc

    ordinary, foreign = torch.rand(300), torch.rand(200) + 0.2
    truth = torch.cat([torch.zeros(300), torch.ones(200)]).long()
    theirs = binary_auroc(torch.cat([ordinary, foreign]).div(2), truth)
    assert out_of_distribution_auroc(ordinary, foreign) == pytest.approx(float(theirs), abs=1e-6)


@given(*(st.lists(st.integers(0, 6), min_size=1, max_size=30) for _ in range(2)))
def test_the_auroc_counts_pairs_and_ties_one_half(ordinary, foreign):
    pairs = [(out > inside) + (out == inside) / 2 for out in foreign for inside in ordinary]
    assert out_of_distribution_auroc(ordinary, foreign) == pytest.approx(np.mean(pairs), abs=1e-15)
    statistic = stats.mannwhitneyu(foreign, ordinary, method="asymptotic").statistic
    assert out_of_distribution_auroc(ordinary, foreign) * len(pairs) == pytest.approx(statistic)


def test_the_auroc_at_its_ends():
    assert out_of_distribution_auroc([0.0, 1.0], [2.0]) == 1.0
    assert out_of_distribution_auroc([2.0], [0.0, 1.0]) == 0.0
    assert out_of_distribution_auroc([1.0] * 5, [1.0] * 3) == 0.5
    assert out_of_distribution_auroc([0.0], [math.inf]) == 1.0


def by_all_orders(uncertainty, correct):
    """The curve averaged over all orders of the records that sort by uncertainty."""
    n = len(correct)
    orders = [o for o in itertools.permutations(range(n)) if all(np.diff([uncertainty[i] for i in o]) >= 0)]
    return np.mean([[np.mean([correct[i] for i in o[: n - k]]) for k in range(n)] for o in orders], axis=0)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_the_rejection_curve_is_the_mean_over_all_orders_of_the_ties(records):
    uncertainty, correct = zip(*records, strict=True)
    curve = rejection_curve(uncertainty, correct)
    expected = by_all_orders(uncertainty, correct)
    assert curve.accuracy.numpy() == pytest.approx(expected)
    assert curve.rejected.tolist() == pytest.approx([k / len(records) for k in range(len(records))])
    assert curve.area == pytest.approx(expected.mean())
    assert (curve.best_accuracy >= curve.accuracy - 1e-12).all()


def test_a_perfect_an_empty_and_a_misleading_uncertainty_have_areas_in_that_order():
    correct = torch.arange(1000) < 800
    perfect = rejection_curve((~correct).double(), correct)
    nothing = rejection_curve(torch.zeros(1000), correct)
    misleading = rejection_curve(correct.double(), correct)
    assert perfect.area > nothing.area > misleading.area
    assert nothing.accuracy.tolist() == pytest.approx([0.8] * 1000)
    assert perfect.accuracy.numpy() == pytest.approx(perfect.best_accuracy.numpy())
    assert perfect.area == pytest.approx(0.8 - 0.8 * math.log(0.8), abs=1e-3)  # the area of min(1, 0.8 / (1 - x))


def test_one_record_is_a_curve_of_one_point():
    curve = rejection_curve([0.3], [True])
    assert (curve.rejected.tolist(), curve.accuracy.tolist(), curve.area) == ([0.0], [1.0], 1.0)


@pytest.mark.parametrize(
    ("uncertainty", "correct", "message"),
    [
        ([0.1, math.nan], [True, False], "uncertainty must hold .* with NaN"),
        ([[0.1]], [True], r"got shape \[1, 1\]"),
        ([0.1, 0.2], [True], "correct must have one row for each of the 2 records, got 1"),
        ([0.1, 0.2], [3, 1], r"True or False .* got torch.int64 .* prediction.labels == torch.as_tensor\(y\)"),
        ([0.1, 0.2], [0, 1], "True or False .* got torch.int64"),  # labels of two classes
        ([0.1, 0.2], torch.tensor([0.0, 1.0]), "True or False .* got torch.float32"),
        ([0.1, 0.2], torch.ones(2) == [1, 1], r"True or False .* shape \[\]"),  # a tensor never equals a list
        ([0.1, 0.2], torch.ones(2) == torch.ones(2, 1), r"True or False .* shape \[2, 2\]"),  # y in one column
        ([], [], "at least one record"),
    ],
)
def test_what_is_no_curve_is_refused(uncertainty, correct, message):
    with pytest.raises(DpbnnError, match=message):
        rejection_curve(uncertainty, correct)


def test_scores_with_nan_are_refused_by_name():
    with pytest.raises(DpbnnError, match="score_in must hold"):
        out_of_distribution_auroc([math.nan], [1.0])
    with pytest.raises(DpbnnError, match="score_out must hold"):
        out_of_distribution_auroc([1.0], [math.nan])


def test_mean_doubt_and_its_parts_add_up():
    of_classes = mean_uncertainty(ClassPrediction(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0.2, 0.0]), 4))
    assert of_classes["mean_entropy"] == pytest.approx(math.log(2) / 2)
    parts = of_classes["mean_expected_entropy"] + of_classes["mean_mutual_information"]
    assert parts == pytest.approx(of_classes["mean_entropy"])
    of_real = mean_uncertainty(RealPrediction(torch.randn(5, 20, 1), torch.rand(5, 20, 1)))
    assert math.hypot(of_real["aleatoric_deviation"], of_real["epistemic_deviation"]) == pytest.approx(
        of_real["total_deviation"], rel=1e-5
    )
