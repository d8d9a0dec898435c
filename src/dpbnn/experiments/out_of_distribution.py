"""Beyond the paper: does doubt tell images of another kind apart? MNIST against Fashion-MNIST."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import dots
from dpbnn.experiments.recipes import WAYS
from dpbnn.experiments.settings import METHODS, NETWORKS
from dpbnn.experiments.training import rows_in_three_ways, runs_in_three_ways
from dpbnn.experiments.words import spread, table
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

SCORES = {"mutual_information": "mutual information", "entropy": "entropy"}
PRIORS = dict.fromkeys(METHODS, "Gaussian")


def jobs(size: Size) -> Sequence[Job]:
    """Four methods on two networks, in three ways."""
    return runs_in_three_ways("mnist", PRIORS, size)


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """The area under the ROC curve by each score."""
    return {"rows": rows_in_three_ways("mnist", PRIORS, size, found, _measured)}


def _measured(runs: Sequence[Found]) -> dict[str, list[float | None]]:
    return {score: [run["foreign"] and run["foreign"][score] for run in runs] for score in SCORES}


def section(found: Results) -> str:
    """One table."""
    text = (
        "Trained on MNIST, asked about test images of MNIST and of Fashion-MNIST (standardized by MNIST's constants). "
        "The area under the ROC curve is the share of pairs in which the garment gets the higher score; 0.5 is chance. "
        "A point estimate has no mutual information."
    )
    columns = [
        "network",
        "method",
        *(f"{way}, {name}" for way in WAYS.values() for name in SCORES.values()),
    ]
    rows = [
        [
            NETWORKS[row["network"]],
            METHODS[row["method"]],
            *(
                "-" if row["method"] == "sgd" and score == "mutual_information" else spread(row["ours"][way][score])
                for way in WAYS
                for score in SCORES
            ),
        ]
        for row in found["rows"]
    ]
    return f"{text}\n\n{table(columns, rows)}"


def picture(found: Results) -> "Figure":
    """By mutual information; by entropy for the point estimate."""
    figure, axes = style.panels(1, 2, height=65)
    for one, (network, name) in zip(axes, NETWORKS.items(), strict=True):
        rows = [row for row in found["rows"] if row["network"] == network]
        scores = ["entropy" if row["method"] == "sgd" else "mutual_information" for row in rows]
        names = [f"{METHODS[row['method']]}{', by entropy' * (row['method'] == 'sgd')}" for row in rows]
        marks = {
            label: [row["ours"][way][score] for row, score in zip(rows, scores, strict=True)]
            for way, label in WAYS.items()
        }
        dots(one, names, marks, "area under the ROC curve", name)
        one.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    style.top_legend(figure, axes[0], columns=3)
    return figure


ITEM = Item("out-of-distribution", "Images of another kind", jobs, results, section, picture)
