"""Bars, and bars of parts, in the style of `dpbnn.plots`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpbnn.plots.style import BLUE, GREEN, GREY, INK, ORANGE, SKY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "HATCHES", "bars", "parts"]

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, SKY, GREY, "#CC79A7", "#F0E442")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
"""For print: what lies beside each other differs in more than colour."""
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
"""Behind a figure, so that no line crosses it."""


def bars(axes: "Axes", values: Mapping[str, float | None], title: str, label: str, one: bool = True) -> None:
    """A bar for each name, top to bottom, with its figure; None is a bar that could not be measured.

    `one` draws a line at 1, for ratios; their axis is logarithmic if the largest is beyond ten times the smallest.
    """
    names = list(values)
    lengths = [values[name] or 0.0 for name in names]
    axes.barh(range(len(names)), lengths, color=[_colour(name) for name in names], height=0.65)
    low, high = min(filter(None, lengths), default=1.0), max(lengths, default=0.0) or 1.0
    if one and high > 10 * low:
        low, label = low / 2, f"{label} (log)"  # half, or the shortest bar would have no length
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(low, high * (high / low) ** 0.18)
    else:
        low = 0.0
        axes.set_xlim(low, 1.18 * high)
    for position, name in enumerate(names):
        value = values[name]
        text = "failed" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"
        end = (max(lengths[position], low), position)
        axes.annotate(text, end, (3, 0), textcoords="offset points", va="center", fontsize=7, bbox=PAPER)
    if one:
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(label, loc="right")  # a long one then ends where the axes do, inside the picture
    axes.set_title(title, loc="left", fontsize=8)


def _colour(name: str) -> str:
    """Plain PyTorch and Opacus differ from ours."""
    return GREY if "plain" in name else ORANGE if "Opacus" in name else BLUE


def parts(
    axes: "Axes", values: Mapping[str, Mapping[str, float]], names: Sequence[str], title: str, label: str
) -> None:
    """A bar for each entry of `values`, made of parts that have one colour and hatch each."""
    left = dict.fromkeys(values, 0.0)
    for position, name in enumerate(names):
        lengths = [found.get(name, 0.0) for found in values.values()]
        axes.barh(
            range(len(values)), lengths, left=list(left.values()), height=0.65, label=name, edgecolor="white",
            linewidth=0.4, color=COLOURS[position], hatch=HATCHES[position],
        )  # fmt: skip
        left = {key: left[key] + found.get(name, 0.0) for key, found in values.items()}
    axes.set_yticks(range(len(values)), list(values), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(title, loc="left", fontsize=8)
