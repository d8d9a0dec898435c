"""Pictures of predicted classes: calibration, confidence, rejection, records unlike the training data."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.metrics._inputs import as_numbers, as_scores
from dpbnn.metrics.classification import ConfidenceHistogram, ReliabilityCurve
from dpbnn.metrics.uncertainty import RejectionCurve, out_of_distribution_auroc
from dpbnn.plots import style
from dpbnn.prediction import ClassPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "confidence_histogram",
    "draw_probabilities",
    "out_of_distribution_histogram",
    "rejection_diagram",
    "reliability_diagram",
]

MOST_ROWS, NUM_BINS = 12, 30
MANY_RECORDS = 20
"""Bins of fewer records are drawn paler: most of what they show is chance."""


def confidence_histogram(
    histogram: ConfidenceHistogram, axes: "Axes | None" = None, *, share: bool = False
) -> "Figure":
    """How many correct and wrong answers there are at each confidence; with `share`, as shares of each group."""
    call = "classification.confidence_histogram(prediction.probabilities, y)"
    style.expect("histogram", histogram, ConfidenceHistogram, call)
    figure, axes = style.start(axes)
    groups = {"correct": (histogram.correct, style.BLUE, None), "wrong": (histogram.wrong, style.VERMILION, "////")}
    for name, (count, colour, hatch) in groups.items():
        heights = 100 * count / count.sum().clamp_min(1) if share else count
        style.outline(axes, 100 * histogram.edges, heights, colour, hatch, f"{name} (n = {int(count.sum()):,})")
    axes.set(xlim=(0, 100), xlabel="confidence (%)", ylabel="share of the group (%)" if share else "records")
    if not share:
        from matplotlib.ticker import MaxNLocator

        locator = axes.yaxis.get_major_locator()
        if isinstance(locator, MaxNLocator):  # and not ticks that were chosen for the given axes
            locator.set_params(integer=True)
    total = int(histogram.correct.sum() + histogram.wrong.sum())
    style.finish(axes, f"accuracy {100 * int(histogram.correct.sum()) / total:.1f} %", columns=2)
    return figure


def draw_probabilities(probabilities: Any, names: Sequence[str] | None = None, axes: "Axes | None" = None) -> "Figure":
    """What each draw of the weights says about one record: a histogram for each class, from ``[draws, classes]``.

    The dots are the means, which the prediction reports. At most 12 classes are shown, those of the largest means.
    """
    values = as_numbers("probabilities", probabilities).double()
    if values.dim() != 2 or not ((values >= -1e-6) & (values <= 1 + 1e-6)).all():
        raise DpbnnError(f"probabilities must lie in 0 to 1, shape [draws, classes], got shape {list(values.shape)}.")
    figure, axes = style.start(axes, height=25 + 8 * min(values.shape[1], MOST_ROWS))
    called = style.names_or(names, [str(label) for label in range(values.shape[1])])
    means = values.mean(dim=0)
    shown = means.argsort(descending=True)[:MOST_ROWS].sort().values.tolist()
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)
    for row, label in enumerate(shown):
        heights = torch.histogram(values[:, label].clamp(0, 1).contiguous(), edges).hist
        top = row - 0.8 * heights / heights.max()
        axes.stairs(top.numpy(), 100 * edges.numpy(), baseline=row, fill=True, color=style.SKY)
        axes.axhline(row, color=style.GREY, linewidth=0.5)
    axes.plot(
        100 * means[shown].numpy(), range(len(shown)), "o", color=style.VERMILION, markeredgecolor="white",
        markersize=5, clip_on=False, zorder=3, label="mean over the draws",
    )  # fmt: skip
    axes.set_yticks(range(len(shown)), [called[label] for label in shown])
    axes.set(xlim=(0, 100), ylim=(len(shown) - 0.8, -1), xlabel="probability (%)", ylabel="class")
    style.finish(axes, f"{len(values):,} draws of the weights", columns=1)
    return figure


def out_of_distribution_histogram(
    ordinary: ClassPrediction, foreign: ClassPrediction, score: str = "entropy", axes: "Axes | None" = None
) -> "Figure":
    """The uncertainty about ordinary and about foreign records, by ``"entropy"`` or ``"mutual_information"``."""
    _validate.one_of("score", score, ["entropy", "mutual_information"])
    scores = {}
    for name, prediction in (("ordinary", ordinary), ("foreign", foreign)):
        if not isinstance(prediction, ClassPrediction):
            _validate.refuse(name, "a ClassPrediction, as release.predict returns for classes", prediction)
        scores[name] = as_scores(score, getattr(prediction, score))
    figure, axes = style.start(axes)
    largest = math.log(max(2, ordinary.probabilities.shape[1], foreign.probabilities.shape[1]))
    if score == "mutual_information":  # it is often far below the largest entropy, and zero for a point estimate
        largest = max(float(values.max()) for values in scores.values()) or largest
    edges = torch.linspace(0, largest, NUM_BINS + 1, dtype=torch.float64)
    for (name, values), colour, hatch in zip(
        scores.items(), (style.BLUE, style.VERMILION), (None, "////"), strict=True
    ):
        shares = 100 * torch.histogram(values.clamp(0, largest), edges).hist / len(values)
        style.outline(axes, edges, shares, colour, hatch, f"{name} (n = {len(values):,})")
    axes.set(xlim=(0, largest), xlabel=f"{score.replace('_', ' ')} (nats)", ylabel="share of the group (%)")
    auroc = out_of_distribution_auroc(*scores.values())
    style.finish(axes, f"told apart in {100 * auroc:.1f} % of pairs (AUROC {auroc:.3f})", columns=2)
    return figure


def rejection_diagram(curve: RejectionCurve, axes: "Axes | None" = None) -> "Figure":
    """Accuracy on what is kept against the share rejected, between chance and the best that any order could do."""
    call = "uncertainty.rejection_curve(prediction.entropy, prediction.labels == torch.as_tensor(y))"
    style.expect("curve", curve, RejectionCurve, call)
    figure, axes = style.start(axes)
    rejected = 100 * curve.rejected
    best = 100 * curve.best_accuracy
    axes.plot(rejected.numpy(), best.numpy(), color=style.GREY, linestyle=":", linewidth=1.2, label="best possible")
    axes.plot(rejected.numpy(), 100 * curve.accuracy.numpy(), color=style.BLUE, linewidth=1.5, label="by uncertainty")
    axes.axhline(100 * float(curve.accuracy[0]), color=style.GREY, linestyle="--", linewidth=1, label="at random")
    axes.set(xlim=(0, 100), xlabel="records handed to a person (%)", ylabel="accuracy on the rest (%)")
    style.finish(axes, f"area under the curve {curve.area:.3f}, n = {len(curve.accuracy):,}", columns=3)
    return figure


def reliability_diagram(curve: ReliabilityCurve, axes: "Axes | None" = None) -> "Figure":
    """Accuracy against confidence with 95 % intervals of chance, and the share of records in each bin below it.

    A point for each bin; those of fewer than 20 records are the paler the fewer they hold.
    """
    style.expect("curve", curve, ReliabilityCurve, "classification.reliability_curve(prediction.probabilities, y)")
    figure, axes = style.start(axes, height=100)
    full = curve.count > 0
    confidence, accuracy = 100 * curve.confidence[full], 100 * curve.accuracy[full]
    low, high = (100 * bound[full] for bound in curve.accuracy_interval)
    axes.plot([0, 100], [0, 100], color=style.GREY, linestyle="--", linewidth=1, label="perfect calibration")
    strength = (0.15 + 0.85 * curve.count[full] / MANY_RECORDS).clamp_max(1.0).numpy()
    marks: dict[str, Any] = {"color": style.BLUE, "alpha": strength, "linewidth": 1, "clip_on": False, "zorder": 3}
    axes.vlines(confidence.numpy(), low.numpy(), high.numpy(), **marks)
    axes.scatter(confidence.numpy(), accuracy.numpy(), 14, **marks)
    # The legend shows a separate point at full strength, however pale the first bin is.
    named = f"measured, 95 % interval (paler: fewer than {MANY_RECORDS} records)"
    axes.errorbar([], [], [], color=style.BLUE, fmt="o", markersize=3.5, elinewidth=1, label=named)
    axes.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy (%)")
    axes.tick_params(labelbottom=False)
    below = style.panel_below(axes)
    edges = 100 * curve.edges
    shares = 100 * curve.count / curve.count.sum()
    below.bar(
        edges[:-1].numpy(), shares.numpy(), edges.diff().numpy(), align="edge", color=style.SKY, edgecolor="white"
    )
    below.set(xlabel="confidence (%)", ylabel="records (%)")
    ece, mce = 100 * curve.expected_calibration_error, 100 * curve.maximum_calibration_error
    total = int(curve.count.sum())
    style.finish(axes, f"calibration error {ece:.1f} % (worst bin {mce:.1f} %), n = {total:,}", columns=1)
    return figure
