"""Beyond the paper: does doubt tell images of another kind apart? MNIST against Fashion-MNIST."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import dots, panels, top_legend
from dpbnn.experiments.settings import METHODS, NETWORKS, Setting, best, paper
from dpbnn.experiments.training import found_by, runs_of
from dpbnn.experiments.words import by_accountant, spread, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

SCORES = {"mutual_information": "mutual information", "entropy": "entropy"}
KINDS = ("private", "best", "not_private")


def settings_of(network: str, method: str, size: Size) -> dict[str, Setting]:
    """The paper's with a Gaussian prior, private and not, and the best."""
    private, plain = (paper("mnist", network, method, "Gaussian", own, size) for own in (True, False))
    return dict(zip(KINDS, (private, best("mnist", network, method, size), plain), strict=True))


def jobs(size: Size) -> Sequence[Job]:
    """Runs of the accuracy and calibration tables."""
    every = [settings_of(network, method, size) for network in NETWORKS for method in METHODS]
    return [run for settings in every for setting in settings.values() for run in runs_of(setting, size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """The area under the ROC curve by each score."""
    rows = []
    for network in NETWORKS:
        for method in METHODS:
            settings = settings_of(network, method, size)
            runs = {kind: found_by(setting, size, found) for kind, setting in settings.items()}
            rows.append(
                {
                    "network": network,
                    "method": method,
                    "settings": {kind: setting.to_json() for kind, setting in settings.items()},
                    "seeds": [run["seed"] for run in runs["private"]],
                    "epsilon": {kind: by_accountant(settings[kind].plan()) for kind in ("private", "best")},
                    "ours": {
                        kind: {score: [run["foreign"][score] for run in own] for score in SCORES}
                        for kind, own in runs.items()
                    },
                }
            )
    return {"rows": rows}


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
        *(f"{kind.replace('_', ' ')}, {name}" for kind in KINDS for name in SCORES.values()),
    ]
    rows = [
        [
            NETWORKS[row["network"]],
            METHODS[row["method"]],
            *(
                "-" if row["method"] == "sgd" and score == "mutual_information" else spread(row["ours"][kind][score])
                for kind in KINDS
                for score in SCORES
            ),
        ]
        for row in found["rows"]
    ]
    return f"{text}\n\n{table(columns, rows)}"


def picture(found: Results) -> "Figure":
    """By mutual information; by entropy for the point estimate."""
    figure, axes = panels(1, 2, height=65)
    for one, (network, name) in zip(axes, NETWORKS.items(), strict=True):
        rows = [row for row in found["rows"] if row["network"] == network]
        scores = ["entropy" if row["method"] == "sgd" else "mutual_information" for row in rows]
        names = [f"{METHODS[row['method']]}{', by entropy' * (row['method'] == 'sgd')}" for row in rows]
        marks = {
            label: [row["ours"][kind][score] for row, score in zip(rows, scores, strict=True)]
            for label, kind in {
                "private, paper's settings": "private",
                "private, best settings": "best",
                "not private": "not_private",
            }.items()
        }
        dots(one, names, marks, "area under the ROC curve", name)
        one.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    top_legend(figure, axes[0], columns=3)
    return figure


ITEM = Item("out-of-distribution", "Images of another kind", jobs, results, section, picture)
