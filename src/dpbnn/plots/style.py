"""The style of all pictures: colours, sizes, and the steps that all plots share."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dpbnn.errors import DpbnnError
from dpbnn.metrics._inputs import as_numbers, as_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "SKY",
    "VERMILION",
    "column",
    "expect",
    "finish",
    "names_or",
    "outline",
    "panel_below",
    "panels",
    "plain",
    "start",
    "top_legend",
]

# Okabe and Ito 2008: colours that colour-blind readers tell apart. For print, what overlaps is hatched or dashed too.
BLUE, SKY, GREEN, ORANGE, VERMILION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
INK, GREY = "#000000", "#767676"
MILLIMETRE = 1 / 25.4


def start(axes: "Axes | None", height: float = 75) -> "tuple[Figure, Axes]":
    """The figure to return and the axes to draw in; a new figure is 100 mm wide and `height` mm high."""
    if axes is None:
        figure, (axes,) = panels(1, 1, width=100, height=height)
        return figure, axes
    plain(axes)
    return axes.figure.figure, axes  # the whole figure, where the axes are in a part of one


def expect(name: str, value: object, kind: type, call: str) -> None:
    """Refuse a value that is not a `kind`; `call`, in dpbnn.metrics, makes one."""
    if not isinstance(value, kind):
        raise DpbnnError(
            f"{name} must be a {kind.__name__}, got {type(value).__name__}; make one first: dpbnn.metrics.{call}"
        )


def column(name: str, values: Any, cure: str) -> Tensor:
    """Values of shape ``[records]`` or ``[records, 1]``, as ``[records]``."""
    numbers = as_numbers(name, values)
    if numbers.dim() != 1 and numbers.shape[1:] != (1,):
        raise DpbnnError(
            f"{name} must be one column, shape [records] or [records, 1], got shape {list(numbers.shape)}; {cure}."
        )
    return as_scores(name, numbers.reshape(-1))


def names_or(given: Sequence[str] | None, default: list[str]) -> list[str]:
    """The user's names, one for each default name, or the default names."""
    if given is not None and len(given) != len(default):
        raise DpbnnError(f"names must hold one name for each of {len(default)}, got {len(given)}.")
    return default if given is None else [str(name) for name in given]


def panel_below(axes: "Axes") -> "Axes":
    """Give the lower part of the axes' place in the figure to a panel with the same horizontal axis."""
    place = axes.get_subplotspec()
    if place is None:
        below = axes.inset_axes((0, -0.42, 1, 0.34), sharex=axes)
    else:
        parts = place.subgridspec(2, 1, height_ratios=(3, 1))
        axes.set_subplotspec(parts[0])
        below = axes.figure.add_subplot(parts[1], sharex=axes)
    plain(below)
    return below


def panels(rows: int, columns: int, width: float = 170, height: float = 60) -> "tuple[Figure, list[Axes]]":
    """A figure `width` mm wide, each row of panels `height` mm high, and its panels row by row."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DpbnnError("Plots need matplotlib, which is not installed: pip install 'dpbnn[plots]'") from error
    figure = Figure((width * MILLIMETRE, rows * height * MILLIMETRE), dpi=200, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in axes:
        plain(panel)
    return figure, axes


def top_legend(figure: "Figure", axes: "Axes", columns: int) -> None:
    """Put one legend for all panels above them."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=columns, frameon=False, fontsize=7)


def plain(axes: "Axes") -> None:
    """Take the frame away, and make ticks and labels small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(8)


def finish(axes: "Axes", title: str, columns: int) -> None:
    """Put the legend above the axes, where it covers nothing, and the title above the legend."""
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, fontsize=7.5, borderaxespad=0.2,
        borderpad=0.2, handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip
    for line in legend.get_lines():
        line.set_linewidth(1.5)
    rows = math.ceil(len(legend.get_texts()) / columns)
    axes.set_title(title, loc="left", fontsize=8, pad=4 + 12 * rows)


def outline(axes: "Axes", edges: Tensor, heights: Tensor, colour: str, hatch: str | None, label: str) -> None:
    """Draw a histogram through which another one shows, hatched so that they differ in print."""
    axes.stairs(
        heights.numpy(), edges.numpy(), fill=True, facecolor=(colour, 0.25), edgecolor=colour, hatch=hatch,
        linewidth=1.2, label=label,
    )  # fmt: skip
