"""Pictures of predictions, their calibration and their uncertainty, in one style.

Each function takes a prediction or a result of `dpbnn.metrics`, draws into `axes` or into a new figure of 100 mm width,
and returns the figure:

    >>> import dpbnn.metrics, dpbnn.plots
    >>> curve = dpbnn.metrics.classification.reliability_curve([[0.8, 0.2], [0.3, 0.7]], [0, 0])
    >>> dpbnn.plots.reliability_diagram(curve).savefig("reliability.png")  # doctest: +SKIP

Figures are built without `pyplot`: nothing is shown or kept open, and no display is needed. Pictures of private data,
like figures measured on it, have no noise on them and are outside the guarantee.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.metrics._inputs import as_numbers, as_scores, check_length, check_real
from dpbnn.metrics.classification import ConfidenceHistogram, ReliabilityCurve
from dpbnn.metrics.regression import CoverageCurve
from dpbnn.metrics.uncertainty import RejectionCurve, out_of_distribution_auroc
from dpbnn.predict import ClassPrediction, RealPrediction
from dpbnn.types import DpbnnError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "chain_trace",
    "confidence_histogram",
    "coverage_diagram",
    "draw_probabilities",
    "out_of_distribution_histogram",
    "regression_bands",
    "rejection_diagram",
    "reliability_diagram",
]

# Okabe and Ito 2008: colours that colour-blind readers tell apart. For print, what overlaps is hatched or dashed too.
BLUE, SKY, GREEN, ORANGE, VERMILION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
INK, GREY = "#000000", "#767676"
MILLIMETRE = 1 / 25.4
MOST_ROWS = 12
NUM_BINS = 30
MANY_RECORDS = 20
"""Bins of fewer records are drawn paler: most of what they show is chance."""


def reliability_diagram(curve: ReliabilityCurve, axes: "Axes | None" = None) -> "Figure":
    """Accuracy against confidence with 95 % intervals of chance, and the share of records in each bin below it.

    A point for each bin; those of fewer than 20 records are the paler the fewer they hold.
    """
    _expect("curve", curve, ReliabilityCurve, "classification.reliability_curve(prediction.probabilities, y)")
    figure, axes = _start(axes, height=100)
    full = curve.count > 0
    confidence, accuracy = 100 * curve.confidence[full], 100 * curve.accuracy[full]
    low, high = (100 * bound[full] for bound in curve.accuracy_interval)
    axes.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="perfect calibration")
    strength = (0.15 + 0.85 * curve.count[full] / MANY_RECORDS).clamp_max(1.0).numpy()
    style: dict[str, Any] = {"color": BLUE, "alpha": strength, "linewidth": 1, "clip_on": False, "zorder": 3}
    axes.vlines(confidence.numpy(), low.numpy(), high.numpy(), **style)
    axes.scatter(confidence.numpy(), accuracy.numpy(), 14, **style)
    # The legend has a point of its own, at full strength whatever the first bin is.
    named = f"measured, 95 % interval (paler: fewer than {MANY_RECORDS} records)"
    axes.errorbar([], [], [], color=BLUE, fmt="o", markersize=3.5, elinewidth=1, label=named)
    axes.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy (%)")
    axes.tick_params(labelbottom=False)
    below = _panel_below(axes)
    edges = 100 * curve.edges
    shares = 100 * curve.count / curve.count.sum()
    below.bar(edges[:-1].numpy(), shares.numpy(), edges.diff().numpy(), align="edge", color=SKY, edgecolor="white")
    below.set(xlabel="confidence (%)", ylabel="records (%)")
    ece, mce = 100 * curve.expected_calibration_error, 100 * curve.maximum_calibration_error
    total = int(curve.count.sum())
    _finish(axes, f"calibration error {ece:.1f} % (worst bin {mce:.1f} %), n = {total:,}", columns=1)
    return figure


def confidence_histogram(
    histogram: ConfidenceHistogram, axes: "Axes | None" = None, *, share: bool = False
) -> "Figure":
    """How many correct and wrong answers there are at each confidence; with `share`, as shares of either group."""
    call = "classification.confidence_histogram(prediction.probabilities, y)"
    _expect("histogram", histogram, ConfidenceHistogram, call)
    figure, axes = _start(axes)
    groups = {"correct": (histogram.correct, BLUE, None), "wrong": (histogram.wrong, VERMILION, "////")}
    for name, (count, colour, hatch) in groups.items():
        heights = 100 * count / count.sum().clamp_min(1) if share else count
        _outline(axes, 100 * histogram.edges, heights, colour, hatch, f"{name} (n = {int(count.sum()):,})")
    axes.set(xlim=(0, 100), xlabel="confidence (%)", ylabel="share of the group (%)" if share else "records")
    if not share:
        _whole_ticks(axes)
    total = int(histogram.correct.sum() + histogram.wrong.sum())
    _finish(axes, f"accuracy {100 * int(histogram.correct.sum()) / total:.1f} %", columns=2)
    return figure


def rejection_diagram(curve: RejectionCurve, axes: "Axes | None" = None) -> "Figure":
    """Accuracy on what is kept against the share rejected, between chance and the best that any order could do."""
    call = "uncertainty.rejection_curve(prediction.entropy, prediction.labels == torch.as_tensor(y))"
    _expect("curve", curve, RejectionCurve, call)
    figure, axes = _start(axes)
    rejected = 100 * curve.rejected
    best = 100 * curve.best_accuracy
    axes.plot(rejected.numpy(), best.numpy(), color=GREY, linestyle=":", linewidth=1.2, label="best possible")
    axes.plot(rejected.numpy(), 100 * curve.accuracy.numpy(), color=BLUE, linewidth=1.5, label="by uncertainty")
    axes.axhline(100 * float(curve.accuracy[0]), color=GREY, linestyle="--", linewidth=1, label="at random")
    axes.set(xlim=(0, 100), xlabel="records handed to a person (%)", ylabel="accuracy on the rest (%)")
    _finish(axes, f"area under the curve {curve.area:.3f}, n = {len(curve.accuracy):,}", columns=3)
    return figure


def out_of_distribution_histogram(
    ordinary: ClassPrediction, foreign: ClassPrediction, score: str = "entropy", axes: "Axes | None" = None
) -> "Figure":
    """The doubt about ordinary and about foreign records; `score` is ``"entropy"`` or ``"mutual_information"``."""
    _validate.one_of("score", score, ["entropy", "mutual_information"])
    for name, prediction in (("ordinary", ordinary), ("foreign", foreign)):
        if not isinstance(prediction, ClassPrediction):
            _validate.refuse(name, "a ClassPrediction, as release.predict returns for classes", prediction)
    figure, axes = _start(axes)
    scores = {
        "ordinary": as_scores(score, getattr(ordinary, score)),
        "foreign": as_scores(score, getattr(foreign, score)),
    }
    largest = math.log(max(2, ordinary.probabilities.shape[1], foreign.probabilities.shape[1]))
    if score == "mutual_information":  # it is often far below the largest entropy, and zero for a point estimate
        largest = max(float(values.max()) for values in scores.values()) or largest
    edges = torch.linspace(0, largest, NUM_BINS + 1, dtype=torch.float64)
    for (name, values), colour, hatch in zip(scores.items(), (BLUE, VERMILION), (None, "////"), strict=True):
        shares = 100 * torch.histogram(values.clamp(0, largest), edges).hist / len(values)
        _outline(axes, edges, shares, colour, hatch, f"{name} (n = {len(values):,})")
    axes.set(xlim=(0, largest), xlabel=f"{score.replace('_', ' ')} (nats)", ylabel="share of the group (%)")
    auroc = out_of_distribution_auroc(*scores.values())
    _finish(axes, f"told apart in {100 * auroc:.1f} % of pairs (AUROC {auroc:.3f})", columns=2)
    return figure


def regression_bands(
    x: Any,
    prediction: RealPrediction,
    data: tuple[Any, Any] | None = None,
    level: float = 0.95,
    output: int = 0,
    labels: tuple[str, str] = ("input", "target"),
    axes: "Axes | None" = None,
) -> "Figure":
    """The mean over one-dimensional inputs `x`, the band of the draws' means and, around it, that of new targets.

    `x` has an entry for each record of the prediction, in any order. A model of several inputs is predicted with all
    but one held fixed, and `x` is the column that varies.

    Both bands are central and hold `level`: the inner one is doubt about the weights alone. `data` is a pair of inputs
    and targets to show as points; `labels` name the axes, with their units.
    """
    check_real(prediction)
    if _validate.whole_number("output", output, at_least=0) >= prediction.means.shape[2]:
        _validate.refuse("output", f"below {prediction.means.shape[2]}, the number of outputs", output)
    inputs = _column(
        "x", x, "a line over one input needs one column: hold the others fixed and give the one that varies"
    )
    check_length("x", inputs, prediction.means.shape[1], "x must be what release.predict was asked for")
    figure, axes = _start(axes)
    order = inputs.argsort()
    along = inputs[order].numpy()
    percent = f"{100 * _validate.fraction('level', level):.4g} %"
    low, high = (bound[order, output].cpu().numpy() for bound in prediction.interval(level))
    axes.fill_between(along, low, high, color=SKY, alpha=0.45, linewidth=0, label=f"new targets ({percent})")
    if prediction.num_draws > 1:
        chances = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        low, high = prediction.means[:, order, output].cpu().double().quantile(chances, dim=0).numpy()
        axes.fill_between(
            along, low, high, color=BLUE, alpha=0.5, linewidth=0, label=f"doubt about the weights ({percent})"
        )
    if data is not None:
        if not isinstance(data, tuple) or len(data) != 2:
            _validate.refuse("data", "a pair of inputs and targets", data)
        inputs = _column("data[0]", data[0], "give the column that x is")
        targets = _column("data[1]", data[1], "give the column of one output")
        check_length("data[1]", targets, len(inputs))
        axes.plot(
            inputs.numpy(), targets.numpy(), "o", color="white", markeredgecolor=INK, markeredgewidth=0.7, markersize=3,
            label="data",
        )  # fmt: skip
    axes.plot(along, prediction.mean[order, output].cpu().numpy(), color=INK, linewidth=1.5, label="mean")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.margins(x=0)
    _finish(axes, "", columns=2)
    return figure


def coverage_diagram(curve: CoverageCurve, axes: "Axes | None" = None) -> "Figure":
    """The share of targets that central intervals hold against the share that they should hold.

    Above the diagonal intervals are wider than they need be (too cautious), below it too narrow (too sure).
    """
    _expect("curve", curve, CoverageCurve, "regression.coverage_curve(prediction, y)")
    figure, axes = _start(axes, height=85)
    levels, covered = 100 * curve.level.numpy(), 100 * curve.coverage.numpy()
    axes.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="perfect")
    chance = 196 * (curve.level * (1 - curve.level) / curve.count).sqrt().numpy()
    axes.fill_between(
        levels, levels - chance, levels + chance, color=GREY, alpha=0.2, linewidth=0, label="chance (95 %)"
    )
    axes.plot(levels, covered, color=BLUE, marker="o", markersize=3, linewidth=1.2, label="measured")
    axes.text(3, 97, "too cautious", color=GREY, fontsize=8, verticalalignment="top")
    axes.text(97, 3, "too sure", color=GREY, fontsize=8, horizontalalignment="right")
    axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="nominal level (%)", ylabel="targets inside the interval (%)")
    _finish(axes, f"calibration error {100 * curve.calibration_error:.1f} %, n = {curve.count:,}", columns=3)
    return figure


def draw_probabilities(probabilities: Any, names: Sequence[str] | None = None, axes: "Axes | None" = None) -> "Figure":
    """What each draw of the weights says about one record: a histogram for each class, from ``[draws, classes]``.

    The dots are the means, which the prediction reports. At most 12 classes are shown, those of the largest means.
    """
    values = as_numbers("probabilities", probabilities).double()
    if values.dim() != 2 or not ((values >= -1e-6) & (values <= 1 + 1e-6)).all():
        raise DpbnnError(f"probabilities must lie in 0 to 1, shape [draws, classes], got shape {list(values.shape)}.")
    figure, axes = _start(axes, height=25 + 8 * min(values.shape[1], MOST_ROWS))
    called = _names(names, [str(label) for label in range(values.shape[1])])
    means = values.mean(dim=0)
    shown = means.argsort(descending=True)[:MOST_ROWS].sort().values.tolist()
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)
    for row, label in enumerate(shown):
        heights = torch.histogram(values[:, label].clamp(0, 1).contiguous(), edges).hist
        top = row - 0.8 * heights / heights.max()
        axes.stairs(top.numpy(), 100 * edges.numpy(), baseline=row, fill=True, color=SKY)
        axes.axhline(row, color=GREY, linewidth=0.5)
    axes.plot(
        100 * means[shown].numpy(), range(len(shown)), "o", color=VERMILION, markeredgecolor="white", markersize=5,
        clip_on=False, zorder=3, label="mean over the draws",
    )  # fmt: skip
    axes.set_yticks(range(len(shown)), [called[label] for label in shown])
    axes.set(xlim=(0, 100), ylim=(len(shown) - 0.8, -1), xlabel="probability (%)", ylabel="class")
    _finish(axes, f"{len(values):,} draws of the weights", columns=1)
    return figure


def chain_trace(samples: Any, names: Sequence[str] | None = None, axes: "Axes | None" = None) -> "Figure":
    """The kept samples of a chain, ``[samples, coordinates]``, and how many independent draws each is worth.

    ``release.posterior.trace`` of an SGLD release has that shape.
    At most four coordinates are drawn, spread evenly; ``names`` has one name for each coordinate of `samples`.
    """
    from dpbnn.posterior.effective_sample_size import effective_sample_size

    trace = as_numbers("samples", samples).double()
    if trace.dim() != 2 or not trace.isfinite().all():
        raise DpbnnError(f"samples must be finite, shape [samples, coordinates], got shape {list(trace.shape)}.")
    figure, axes = _start(axes)
    colours = (BLUE, ORANGE, GREEN, VERMILION)
    shown = torch.linspace(0, trace.shape[1] - 1, min(trace.shape[1], len(colours))).long().unique().tolist()
    called = _names(names, [f"weight {column}" for column in range(trace.shape[1])])
    worth = effective_sample_size(trace)
    for colour, column in zip(colours, shown, strict=False):
        label = f"{called[column]}: ESS {float(worth[column]):.0f}"
        axes.plot(trace[:, column].numpy(), color=colour, linewidth=0.8, label=label)
    axes.set(xlabel="kept sample (number)", ylabel="value of the weight")
    axes.margins(x=0)
    columns = 2 if max(len(called[column]) for column in shown) < 16 else 1
    _finish(axes, f"{len(trace):,} samples, worth {float(worth.median()):,.0f} independent ones (median)", columns)
    return figure


def _start(axes: "Axes | None", height: float = 75) -> "tuple[Figure, Axes]":
    """The figure to return and the axes to draw in; a new figure is 100 mm wide and `height` mm high."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DpbnnError("Plots need matplotlib, which is not installed: pip install 'dpbnn[plots]'") from error
    if axes is None:
        axes = Figure((100 * MILLIMETRE, height * MILLIMETRE), dpi=200, layout="constrained").add_subplot()
    _plain(axes)
    return axes.figure.figure, axes  # the whole figure, where the axes are in a part of one


def _expect(name: str, value: object, kind: type, call: str) -> None:
    """Refuse what is no result of `call`, a function of dpbnn.metrics; mostly it is the prediction itself."""
    if not isinstance(value, kind):
        raise DpbnnError(
            f"{name} must be a {kind.__name__}, got {type(value).__name__}; make one first: dpbnn.metrics.{call}"
        )


def _column(name: str, values: Any, cure: str) -> Tensor:
    """``[records]`` or ``[records, 1]`` as the former."""
    numbers = as_numbers(name, values)
    if numbers.dim() != 1 and numbers.shape[1:] != (1,):
        raise DpbnnError(
            f"{name} must be one column, shape [records] or [records, 1], got shape {list(numbers.shape)}; {cure}."
        )
    return as_scores(name, numbers.reshape(-1))


def _names(given: Sequence[str] | None, default: list[str]) -> list[str]:
    if given is not None and len(given) != len(default):
        raise DpbnnError(f"names must hold one name for each of {len(default)}, got {len(given)}.")
    return default if given is None else [str(name) for name in given]


def _panel_below(axes: "Axes") -> "Axes":
    """Give the lower part of the axes' place in the figure to a panel with the same horizontal axis."""
    place = axes.get_subplotspec()
    if place is None:
        below = axes.inset_axes((0, -0.42, 1, 0.34), sharex=axes)
    else:
        parts = place.subgridspec(2, 1, height_ratios=(3, 1))
        axes.set_subplotspec(parts[0])
        below = axes.figure.add_subplot(parts[1], sharex=axes)
    _plain(below)
    return below


def _plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(8)


def _whole_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    locator = axes.yaxis.get_major_locator()
    if isinstance(locator, MaxNLocator):  # and not ticks that were chosen for the given axes
        locator.set_params(integer=True)


def _finish(axes: "Axes", title: str, columns: int) -> None:
    """The legend above the axes, where it covers nothing, and the title above the legend."""
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, fontsize=7.5, borderaxespad=0.2,
        borderpad=0.2, handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip
    for line in legend.get_lines():
        line.set_linewidth(1.5)
    rows = math.ceil(len(legend.get_texts()) / columns)
    axes.set_title(title, loc="left", fontsize=8, pad=4 + 12 * rows)


def _outline(axes: "Axes", edges: Tensor, heights: Tensor, colour: str, hatch: str | None, label: str) -> None:
    """A histogram that another one can be seen through, and told from in print."""
    axes.stairs(
        heights.numpy(), edges.numpy(), fill=True, facecolor=(colour, 0.25), edgecolor=colour, hatch=hatch,
        linewidth=1.2, label=label,
    )  # fmt: skip
