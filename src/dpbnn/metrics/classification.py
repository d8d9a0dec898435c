"""How good predicted probabilities of classes are, and whether they are calibrated.

    NLL   = -mean_i log p_i[y_i]
    Brier = mean_i sum_k (p_i[k] - [y_i = k])^2
    ECE   = sum_m (n_m / n) |accuracy_m - confidence_m|,      MCE = max_m |accuracy_m - confidence_m|

Calibration is that of the top label: a record's confidence is the probability of its most probable class (of several
equal ones the first), and confidences are put into bins. Every function takes any probabilities ``[records, classes]``
and labels ``[records]``, as tensors, arrays or lists.

    >>> probabilities, labels = [[0.8, 0.2], [0.6, 0.4], [0.1, 0.9], [0.7, 0.3]], [0, 1, 1, 0]
    >>> accuracy(probabilities, labels)
    0.75
    >>> round(expected_calibration_error(probabilities, labels), 3)
    0.3

References: Guo et al. 2017 (reliability, ECE, MCE), Nguyen and O'Connor 2015 (bins of equal count), Brier 1950.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.metrics._inputs import as_labels, as_probabilities
from dpbnn.metrics._ties import mean_over_ties

__all__ = [
    "ConfidenceHistogram",
    "ReliabilityCurve",
    "accuracy",
    "adaptive_calibration_error",
    "brier_score",
    "confidence_histogram",
    "expected_calibration_error",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "reliability_curve",
]

NUM_BINS = 15
NORMAL_95 = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""


@dataclass(eq=False)
class ReliabilityCurve:
    """For each bin of confidence, ``(edges[m], edges[m + 1]]``: the mean confidence and the accuracy.

    `edges` has one entry more than the others. `confidence` (the mean in the bin) and `accuracy` are NaN where `count`
    is zero.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def gap(self) -> Tensor:
        """``|accuracy - confidence|``; zero in an empty bin."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0)

    @property
    def expected_calibration_error(self) -> float:
        """The gap of a bin, averaged over the records."""
        average = float((self.gap * self.count).sum() / self.count.sum())
        return min(average, self.maximum_calibration_error)  # rounding can lift an average above its largest term

    @property
    def maximum_calibration_error(self) -> float:
        """The largest gap, however few records are in its bin."""
        return float(self.gap.max())

    @property
    def accuracy_interval(self) -> tuple[Tensor, Tensor]:
        """How low and high the true accuracy of a bin may be at 95 % confidence (Wilson 1927); NaN in an empty bin."""
        spread = NORMAL_95**2 / self.count
        centre = self.accuracy + spread / 2
        reach = (self.accuracy * (1 - self.accuracy) * spread + spread.square() / 4).sqrt()
        return (centre - reach) / (1 + spread), (centre + reach) / (1 + spread)


@dataclass(eq=False)
class ConfidenceHistogram:
    """How many records have a confidence in ``(edges[m], edges[m + 1]]``, the correct and the wrong ones apart."""

    edges: Tensor
    correct: Tensor
    wrong: Tensor


def accuracy(probabilities: Any, labels: Any) -> float:
    """The share of records whose most probable class is the label."""
    _, correct = _top_label(probabilities, labels)
    return float(correct.mean())


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    """``-mean_i log p_i[y_i]`` in nats; infinite if a label was given probability zero."""
    checked = as_probabilities(probabilities)
    chosen = checked.double().gather(1, as_labels(labels, checked)[:, None])
    return float(-chosen.log().mean()) + 0.0  # and never minus zero


def brier_score(probabilities: Any, labels: Any) -> float:
    """``mean_i sum_k (p_i[k] - [y_i = k])^2``: summed over the classes, so from 0 to 2, also for two classes."""
    checked = as_probabilities(probabilities)
    truth = torch.nn.functional.one_hot(as_labels(labels, checked), checked.shape[1])
    return float((checked.double() - truth).square().sum(dim=1).mean())


def reliability_curve(probabilities: Any, labels: Any, num_bins: int = NUM_BINS) -> ReliabilityCurve:
    """Mean confidence and accuracy in bins of equal width, closed on the right: ``((m - 1) / M, m / M]``."""
    confidence, correct = _top_label(probabilities, labels)
    edges, chosen = _equal_width(confidence, num_bins)
    count = chosen.bincount(minlength=num_bins)
    mean_confidence = chosen.bincount(weights=confidence.double(), minlength=num_bins) / count
    return ReliabilityCurve(edges, mean_confidence, chosen.bincount(weights=correct, minlength=num_bins) / count, count)


def confidence_histogram(probabilities: Any, labels: Any, num_bins: int = NUM_BINS) -> ConfidenceHistogram:
    """Counts of correct and of wrong records, in the bins of `reliability_curve`."""
    confidence, correct = _top_label(probabilities, labels)
    edges, chosen = _equal_width(confidence, num_bins)
    of_correct, of_wrong = chosen[correct == 1], chosen[correct == 0]
    return ConfidenceHistogram(edges, of_correct.bincount(minlength=num_bins), of_wrong.bincount(minlength=num_bins))


def expected_calibration_error(probabilities: Any, labels: Any, num_bins: int = NUM_BINS) -> float:
    """ECE: the gap between confidence and accuracy in bins of equal width, averaged over the records."""
    return reliability_curve(probabilities, labels, num_bins).expected_calibration_error


def maximum_calibration_error(probabilities: Any, labels: Any, num_bins: int = NUM_BINS) -> float:
    """MCE: the gap in the worst bin of equal width; with few records in that bin, mostly chance."""
    return reliability_curve(probabilities, labels, num_bins).maximum_calibration_error


def adaptive_calibration_error(probabilities: Any, labels: Any, num_bins: int = NUM_BINS) -> float:
    """ECE in bins of equal count: records sorted by confidence, cut into `num_bins` groups as equal as can be.

    Fewer records than bins make a bin each. Records of equal confidence count with the accuracy that they have
    together, so that the order of the records does not matter.
    """
    _validate.whole_number("num_bins", num_bins)
    confidence, correct = _top_label(probabilities, labels)
    order = confidence.argsort()
    surplus = (mean_over_ties(confidence, correct) - confidence.double())[order]
    groups = surplus.tensor_split(min(num_bins, len(surplus)))
    return float(torch.stack([group.sum().abs() for group in groups]).sum() / len(surplus))


def _top_label(probabilities: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """The confidence of each record, in the type of its probabilities, and 1 or 0 for a right or wrong top label."""
    checked = as_probabilities(probabilities)
    return checked.amax(dim=1), (checked.argmax(dim=1) == as_labels(labels, checked)).double()


def _equal_width(confidence: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """The edges, and for each confidence the number of its bin."""
    _validate.whole_number("num_bins", num_bins)
    edges = torch.arange(num_bins + 1, dtype=torch.float64) / num_bins
    # Edges rounded as the confidences are: 0.2 in float32 is a little more than 0.2, and belongs to the bin below.
    return edges, torch.bucketize(confidence, edges[1:-1].to(confidence))
