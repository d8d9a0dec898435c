"""Pictures of predicted real outputs: bands around the mean, and how many targets lie inside them."""

from typing import TYPE_CHECKING, Any

import torch

from dpbnn import _validate
from dpbnn.metrics._inputs import check_length, check_real
from dpbnn.metrics.regression import CoverageCurve
from dpbnn.plots.style import BLUE, GREY, INK, SKY, column, expect, finish, start
from dpbnn.prediction import RealPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["coverage_diagram", "regression_bands"]


def coverage_diagram(curve: CoverageCurve, axes: "Axes | None" = None) -> "Figure":
    """The share of targets that central intervals hold against the share that they should hold.

    Above the diagonal intervals are wider than they need be (too cautious), below it too narrow (too sure).
    """
    expect("curve", curve, CoverageCurve, "regression.coverage_curve(prediction, y)")
    figure, axes = start(axes, height=85)
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
    finish(axes, f"calibration error {100 * curve.calibration_error:.1f} %, n = {curve.count:,}", columns=3)
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

    Both bands are central and hold `level`; the inner one shows uncertainty about the weights alone. `data` is a pair
    of inputs and targets to show as points; `labels` name the axes, with their units.
    """
    check_real(prediction)
    if _validate.whole_number("output", output, at_least=0) >= prediction.means.shape[2]:
        _validate.refuse("output", f"below {prediction.means.shape[2]}, the number of outputs", output)
    inputs = column(
        "x", x, "a line over one input needs one column: hold the others fixed and give the one that varies"
    )
    check_length("x", inputs, prediction.means.shape[1], "x must be what release.predict was asked for")
    figure, axes = start(axes)
    order = inputs.argsort()
    along = inputs[order].numpy()
    percent = f"{100 * _validate.fraction('level', level):.4g} %"
    low, high = (bound[order, output].cpu().numpy() for bound in prediction.interval(level))
    axes.fill_between(along, low, high, color=SKY, alpha=0.45, linewidth=0, label=f"new targets ({percent})")
    if prediction.num_draws > 1:
        chances = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        low, high = prediction.means[:, order, output].cpu().double().quantile(chances, dim=0).numpy()
        axes.fill_between(
            along, low, high, color=BLUE, alpha=0.5, linewidth=0, label=f"uncertainty about the weights ({percent})"
        )
    if data is not None:
        if not isinstance(data, tuple) or len(data) != 2:
            _validate.refuse("data", "a pair of inputs and targets", data)
        inputs = column("data[0]", data[0], "give the column that x is")
        targets = column("data[1]", data[1], "give the column of one output")
        check_length("data[1]", targets, len(inputs))
        axes.plot(
            inputs.numpy(), targets.numpy(), "o", color="white", markeredgecolor=INK, markeredgewidth=0.7, markersize=3,
            label="data",
        )  # fmt: skip
    axes.plot(along, prediction.mean[order, output].cpu().numpy(), color=INK, linewidth=1.5, label="mean")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.margins(x=0)
    finish(axes, "", columns=2)
    return figure
