"""Pictures of results, in the style of `dpbnn.plots`."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbnn.experiments.settings import METHODS, NETWORKS
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LINES", "MARKS", "compared", "dots", "lines", "titled"]

MARKS = (
    ("D", style.GREY),
    ("o", style.BLUE),
    ("^", style.VERMILION),
    ("s", style.GREEN),
    ("v", style.ORANGE),
    ("P", style.SKY),
)
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
"""For print: what is in one picture differs in more than colour."""


def titled(axes: "Axes", title: str) -> None:
    """A panel of many: its own title, and no legend."""
    axes.set_title(title, loc="left", fontsize=8)
    if (legend := axes.get_legend()) is not None:
        legend.remove()


def dots(
    axes: "Axes", names: Sequence[str], marks: Mapping[str, Sequence[Sequence[float | None]]], label: str, title: str
) -> None:
    """For each name, top to bottom, the median of each kind, with a line from the least value to the largest.

    What the paper says, if it is shown, comes first: so that the other kinds look the same in all pictures.
    """
    for kind, (mark, colour) in zip(marks, MARKS if "paper" in marks else MARKS[1:], strict=False):
        shift = 0.13 * (list(marks).index(kind) - (len(marks) - 1) / 2)
        known = [[value for value in own if value is not None] for own in marks[kind]]
        full = [(row + shift, own) for row, own in enumerate(known) if own]
        for row, own in full:
            axes.plot([min(own), max(own)], [row, row], color=colour, linewidth=1)
        medians = [statistics.median(own) for _, own in full]
        places = [row for row, _ in full]
        axes.plot(medians, places, mark, color=colour, markersize=4, linestyle="none", label=kind)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel(label)
    axes.set_title(title, loc="left", fontsize=8)


def compared(
    rows: Sequence[Mapping[str, Any]],
    marks: Mapping[str, Callable[[Any], Sequence[float | None]]],
    label: str,
    height: float,
) -> "tuple[Figure, list[Axes]]":
    """A panel for each network, in which each method with its prior has its marks."""
    figure, axes = style.panels(1, 2, height=height)
    for one, (network, title) in zip(axes, NETWORKS.items(), strict=True):
        own = [row for row in rows if row["network"] == network]
        names = [f"{METHODS[row['method']]}, {row['prior']}" for row in own]
        dots(one, names, {kind: list(map(values, own)) for kind, values in marks.items()}, label, title)
    style.top_legend(figure, axes[0], columns=len(marks))
    return figure, axes


def lines(
    axes: "Axes", curves: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]], labels: tuple[str, str]
) -> None:
    """For each name the median over runs along x, in a band from the least to the largest."""
    for (name, (x, runs)), (_, colour), line in zip(curves.items(), MARKS[1:] + MARKS[:1], LINES, strict=False):
        columns = list(zip(*runs, strict=True))
        axes.plot(
            x, [statistics.median(own) for own in columns], color=colour, linestyle=line, linewidth=1.4, label=name
        )
        axes.fill_between(x, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=labels[0], ylabel=labels[1])
