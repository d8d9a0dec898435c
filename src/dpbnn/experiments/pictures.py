"""Pictures of results, in the style of `dpbnn.plots`."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbnn.experiments.item import Results
from dpbnn.experiments.settings import METHODS
from dpbnn.experiments.words import by_network
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is loaded when something is drawn

__all__ = ["LINES", "MARKS", "Axes", "Figure", "compared", "lines", "log_ticks", "titled"]

MARKS = (
    ("D", style.GREY),
    ("o", style.BLUE),
    ("^", style.VERMILION),
    ("s", style.GREEN),
    ("v", style.ORANGE),
    ("P", style.SKY),
)
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
"""Line styles: in print, curves must differ in more than colour."""


def titled(axes: Axes, title: str) -> None:
    """Give a panel a title, and take its legend away."""
    axes.set_title(title, loc="left", fontsize=8)
    if (legend := axes.get_legend()) is not None:
        legend.remove()


def compared(
    rows: Sequence[Results],
    kinds: Mapping[str, Callable[[Any], Sequence[float | None]]],
    label: str,
    height: float,
    name: Callable[[Any], str] = lambda row: f"{METHODS[row['method']]}, {row['prior']}",
) -> tuple[Figure, list[Axes]]:
    """A panel for each network: for each row the median of each kind, in a line from the least value to the largest.

    What the paper says, if it is shown, comes first, so that the other kinds look the same in all pictures.
    """
    figure, axes = style.panels(1, 2, height=height)
    for panel, (title, group) in zip(axes, by_network(rows).items(), strict=True):
        marks = zip(kinds.items(), MARKS if "paper" in kinds else MARKS[1:], strict=False)
        for place, ((kind, values), (mark, colour)) in enumerate(marks):
            shift = 0.13 * (place - (len(kinds) - 1) / 2)
            known = [[value for value in values(row) if value is not None] for row in group]
            full = {line + shift: values for line, values in enumerate(known) if values}
            for line, ends in full.items():
                panel.plot([min(ends), max(ends)], [line, line], color=colour, linewidth=1)
            medians = [statistics.median(values) for values in full.values()]
            panel.plot(medians, list(full), mark, color=colour, markersize=4, linestyle="none", label=kind)
        panel.set_yticks(range(len(group)), list(map(name, group)), fontsize=7)
        panel.set_ylim(len(group) - 0.5, -0.5)
        panel.grid(axis="x", linewidth=0.3)
        panel.set_xlabel(label)
        titled(panel, title)
    style.top_legend(figure, axes[0], columns=len(kinds))
    return figure, axes


def lines(
    axes: Axes, curves: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]], labels: tuple[str, str]
) -> None:
    """Draw for each name the median over runs along x, in a band from the least run to the largest."""
    for (name, (x, runs)), (_, colour), line in zip(curves.items(), MARKS[1:] + MARKS[:1], LINES, strict=False):
        columns = list(zip(*runs, strict=True))
        medians = list(map(statistics.median, columns))
        axes.plot(x, medians, color=colour, linestyle=line, linewidth=1.4, label=name)
        axes.fill_between(x, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=labels[0], ylabel=labels[1])


def log_ticks(axes: Axes) -> None:
    """Make the y axis logarithmic, with ticks at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log", subs=[])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
