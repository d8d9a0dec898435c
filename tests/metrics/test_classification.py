"""Figures of predicted classes, against torchmetrics, scikit-learn and counting by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpbnn.errors import DpbnnError
from dpbnn.metrics import classification as c


def synthetic(records=2000, classes=4, temperature=1.0):
    """Labels drawn from the probabilities of temperature 1; below 1 a prediction is too sure, above not sure enough."""
    logits = torch.randn(records, classes, dtype=torch.float64) * 2
    labels = logits.softmax(1).multinomial(1).flatten()
    return (logits / temperature).softmax(1), labels


@pytest.mark.parametrize("num_bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 4, 10])
def test_calibration_errors_are_those_of_torchmetrics(num_bins, classes):
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, labels = synthetic(classes=classes, temperature=0.5)
    probabilities = 0.99 * probabilities + 0.01 / classes  # theirs gives a confidence of exactly 1 a bin of its own
    for norm, ours in {"l1": c.expected_calibration_error, "max": c.maximum_calibration_error}.items():
        theirs = multiclass_calibration_error(probabilities, labels, classes, n_bins=num_bins, norm=norm)
        assert ours(probabilities, labels, num_bins) == pytest.approx(float(theirs), abs=1e-5)  # theirs is in float32


def test_accuracy_log_likelihood_and_brier_score_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

    p, y = (values.numpy() for values in synthetic())
    assert c.accuracy(p, y) == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert c.negative_log_likelihood(p, y) == pytest.approx(log_loss(y, p))
    assert c.brier_score(p, y) == pytest.approx(brier_score_loss(y, p, scale_by_half=False))


def test_the_adaptive_error_is_that_of_groups_of_equal_count():
    probabilities, labels = (values.numpy() for values in synthetic(records=1003, temperature=0.6))
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == labels
    groups = np.array_split(np.argsort(confidence), 15)
    expected = sum(len(g) / 1003 * abs(confidence[g].mean() - correct[g].mean()) for g in groups)
    assert c.adaptive_calibration_error(probabilities, labels) == pytest.approx(expected)
    assert max(map(len, groups)) - min(map(len, groups)) == 1


def test_the_adaptive_error_of_equal_confidences_does_not_depend_on_the_order_of_records():
    probabilities = torch.tensor([0.75, 0.25]).repeat(400, 1)
    right_first = torch.arange(400) // 300
    assert c.adaptive_calibration_error(probabilities, right_first) == pytest.approx(0.0, abs=1e-12)
    assert c.adaptive_calibration_error(probabilities, right_first.flip(0)) == pytest.approx(0.0, abs=1e-12)
    assert c.adaptive_calibration_error([[0.9, 0.1], [0.8, 0.2]], [0, 1]) == pytest.approx((0.1 + 0.8) / 2)


def test_a_reliability_curve_counted_by_hand():
    probabilities = [[0.55, 0.45], [0.45, 0.55], [0.9, 0.1], [0.95, 0.05], [1.0, 0.0]]
    curve = c.reliability_curve(probabilities, [0, 0, 0, 1, 0], num_bins=5)
    assert curve.edges.tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert curve.count.tolist() == [0, 0, 2, 0, 3]
    assert curve.confidence.tolist() == pytest.approx([math.nan, math.nan, 0.55, math.nan, 0.95], nan_ok=True)
    assert curve.accuracy.tolist() == pytest.approx([math.nan, math.nan, 0.5, math.nan, 2 / 3], nan_ok=True)
    assert curve.gap.tolist() == pytest.approx([0, 0, 0.05, 0, 0.95 - 2 / 3])
    assert curve.expected_calibration_error == pytest.approx(0.4 * 0.05 + 0.6 * (0.95 - 2 / 3))
    assert curve.maximum_calibration_error == pytest.approx(0.95 - 2 / 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_bins_are_closed_on_the_right_in_every_type(dtype):
    fifths = torch.tensor([[0.6, 0.4], [0.2, 0.8], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64).to(dtype)
    assert c.reliability_curve(fifths, [0, 0, 0, 0], num_bins=5).count.tolist() == [0, 0, 2, 1, 1]


def test_the_histogram_splits_the_counts_of_the_curve():
    probabilities, labels = synthetic()
    curve, histogram = c.reliability_curve(probabilities, labels), c.confidence_histogram(probabilities, labels)
    assert torch.equal(histogram.correct + histogram.wrong, curve.count)
    assert int(histogram.correct.sum()) / 2000 == c.accuracy(probabilities, labels)
    assert torch.equal(histogram.edges, curve.edges)


@given(
    st.integers(2, 5).flatmap(
        lambda classes: st.lists(
            st.tuples(st.lists(st.floats(-30, 30), min_size=classes, max_size=classes), st.integers(0, classes - 1)),
            min_size=1,
            max_size=40,
        )
    ),
    st.integers(1, 20),
)
def test_the_expected_error_never_exceeds_the_maximum(records, num_bins):
    probabilities = torch.tensor([logits for logits, _ in records], dtype=torch.float64).softmax(1)
    labels = [label for _, label in records]
    expected = c.expected_calibration_error(probabilities, labels, num_bins)
    assert 0 <= expected <= c.maximum_calibration_error(probabilities, labels, num_bins) <= 1
    assert 0 <= c.adaptive_calibration_error(probabilities, labels, num_bins) <= 1
    assert 0 <= c.brier_score(probabilities, labels) <= 2


def test_a_calibrated_prediction_passes_and_one_too_sure_or_not_sure_enough_does_not():
    calibrated = c.reliability_curve(*synthetic(20000))
    assert calibrated.expected_calibration_error < 0.02
    sure = c.reliability_curve(*synthetic(20000, temperature=0.4))
    assert sure.expected_calibration_error > 0.1
    full = sure.count > 200
    assert full.sum() > 5
    assert (sure.accuracy < sure.confidence)[full].all()
    unsure = c.reliability_curve(*synthetic(20000, temperature=2.5))
    assert unsure.expected_calibration_error > 0.1
    assert (unsure.accuracy > unsure.confidence)[unsure.count > 200].all()


def test_certainty_that_is_right_and_certainty_that_is_wrong():
    sure = [[1.0, 0.0, 0.0]]
    assert (c.accuracy(sure, [0]), c.negative_log_likelihood(sure, [0]), c.brier_score(sure, [0])) == (1.0, 0.0, 0.0)
    assert math.copysign(1.0, c.negative_log_likelihood(sure, [0])) == 1.0
    assert c.expected_calibration_error(sure, [0]) == c.adaptive_calibration_error(sure, [0]) == 0.0
    assert (c.accuracy(sure, [2]), c.negative_log_likelihood(sure, [2]), c.brier_score(sure, [2])) == (0.0, math.inf, 2)
    assert c.expected_calibration_error(sure, [2]) == c.maximum_calibration_error(sure, [2]) == 1.0


def test_all_labels_equal_is_an_ordinary_case():
    probabilities, _ = synthetic(50, classes=3)
    labels = torch.zeros(50, dtype=torch.uint8)
    assert c.accuracy(probabilities, labels) == pytest.approx(float((probabilities.argmax(1) == 0).double().mean()))
    assert 0 < c.expected_calibration_error(probabilities, labels) < 1


def test_arrays_lists_and_tensors_of_any_type_give_one_result():
    probabilities, labels = synthetic(30)
    read_only = probabilities.numpy().copy()
    read_only.flags.writeable = False
    expected = c.brier_score(probabilities, labels)
    assert c.brier_score(read_only, labels.numpy().astype("int16")) == expected
    assert c.brier_score(probabilities.tolist(), labels.tolist()) == expected
    assert c.brier_score(probabilities.float().requires_grad_(), labels.int()) == pytest.approx(expected, abs=1e-6)
    assert c.accuracy([[0.2, 0.8], [0.7, 0.3]], [True, False]) == 1.0


@pytest.mark.parametrize(
    "labels", [[1.0, 0.0], [[1], [0]], [[1.0], [0.0]], [True, False], torch.tensor([[1.0], [0.0]])]
)
def test_two_classes_may_be_given_as_one_logit_takes_them(labels):
    assert c.accuracy([[0.2, 0.8], [0.3, 0.7]], labels) == 0.5


FINE = [[0.5, 0.5], [0.1, 0.9]]


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([[math.nan, 0.5]], [0], "got NaN"),
        ([[math.inf, 0.5]], [0], "sum to 1"),
        ([[2.0, -1.0]], [0], r"got values from -1 to 2.*softmax"),
        ([[0.5, 0.2]], [0], r"sums from 0\.7 to 0\.7"),
        ([0.5, 0.2], [0, 0], "both columns"),
        ([[1, 0]], [0], "floating-point"),
        ([["a", "b"]], [0], "must hold numbers"),
        ([[0.5, 0.5], [1.0]], [0, 0], "must hold numbers"),
        (torch.zeros(0, 2), [], "at least one record"),
        (FINE, [0], "each of the 2 records, got 1 row"),
        (FINE, [0, 2], "lie in 0 to 1, the 2 classes of the prediction, got others"),
        (FINE, [-1, 0], "lie in 0 to 1, .* got others"),
        (FINE, [0.0, 0.5], "whole numbers"),
        (FINE, [0.0, math.nan], "whole numbers"),
        ([[0.5, 0.5, 0.0]], [1.0], "whole numbers"),
        (FINE, [[1, 0], [0, 1]], r"argmax\(1\)"),
        (FINE, ["cat", "dog"], "labels must hold numbers"),
    ],
)
def test_what_does_not_fit_is_refused(probabilities, labels, message):
    for figure in (c.accuracy, c.negative_log_likelihood, c.brier_score, c.reliability_curve, c.confidence_histogram):
        with pytest.raises(DpbnnError, match=message):
            figure(probabilities, labels)
    with pytest.raises(DpbnnError, match=message):
        c.adaptive_calibration_error(probabilities, labels)


@pytest.mark.parametrize("figure", [c.reliability_curve, c.confidence_histogram, c.adaptive_calibration_error])
@pytest.mark.parametrize("num_bins", [0, -1, 2.5, True])
def test_the_number_of_bins_is_a_whole_number_above_zero(figure, num_bins):
    with pytest.raises(DpbnnError, match="num_bins must be"):
        figure(FINE, [0, 1], num_bins)


def test_the_interval_of_a_bins_accuracy_is_that_of_scipy():
    curve = c.reliability_curve(*synthetic(200), num_bins=10)
    low, high = curve.accuracy_interval
    for accuracy, count, *ours in zip(*(v.tolist() for v in (curve.accuracy, curve.count, low, high)), strict=True):
        if count:
            theirs = stats.binomtest(round(accuracy * count), count).proportion_ci(method="wilson")
            assert ours == pytest.approx([theirs.low, theirs.high], abs=1e-6)
        else:
            assert all(map(math.isnan, ours))
