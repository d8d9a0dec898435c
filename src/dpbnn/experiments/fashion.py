"""Beyond the paper: the accuracy and calibration tables for Fashion-MNIST."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import dots
from dpbnn.experiments.recipes import WAYS
from dpbnn.experiments.settings import METHODS, NETWORKS
from dpbnn.experiments.training import rows_in_three_ways, runs_in_three_ways
from dpbnn.experiments.words import figure_of, spread, table
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

FIGURES = {"accuracy": "accuracy", "expected_calibration_error": "ECE"}
PRIORS = dict.fromkeys(METHODS, "Gaussian") | {"sgd": "none"}
"""The settings of MNIST, without any tuning on garments."""


def jobs(size: Size) -> Sequence[Job]:
    """Four methods on two networks, in three ways."""
    return runs_in_three_ways("fashion-mnist", PRIORS, size)


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each network and method."""
    return {"rows": rows_in_three_ways("fashion-mnist", PRIORS, size, found, _measured)}


def _measured(runs: Sequence[Found]) -> dict[str, list[float | None]]:
    return {name: figure_of(name)(runs) for name in FIGURES}


def section(found: Results) -> str:
    """One table."""
    columns = ["network", "method", *(f"{way}, {name}" for way in WAYS.values() for name in FIGURES.values())]
    rows = [
        [
            NETWORKS[row["network"]],
            METHODS[row["method"]],
            *(spread(row["ours"][way][figure]) for way in WAYS for figure in FIGURES),
        ]
        for row in found["rows"]
    ]
    text = "The same networks, settings and budget as for MNIST; nothing was tuned on garments."
    return f"{text}\n\n{table(columns, rows)}"


def picture(found: Results) -> "Figure":
    """Accuracy."""
    figure, axes = style.panels(1, 2, height=60)
    for one, (network, name) in zip(axes, NETWORKS.items(), strict=True):
        rows = [row for row in found["rows"] if row["network"] == network]
        marks = {label: [row["ours"][way]["accuracy"] for row in rows] for way, label in WAYS.items()}
        dots(one, [METHODS[row["method"]] for row in rows], marks, "test accuracy", name)
    style.top_legend(figure, axes[0], columns=3)
    return figure


ITEM = Item("fashion", "Fashion-MNIST", jobs, results, section, picture)
