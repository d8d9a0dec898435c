"""Beyond the paper: the accuracy and calibration tables for Fashion-MNIST."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import dots, panels, top_legend
from dpbnn.experiments.settings import METHODS, NETWORKS, Setting, best, paper
from dpbnn.experiments.training import found_by, runs_of
from dpbnn.experiments.words import by_accountant, figure_of, spread, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

KINDS = {"private": "private", "best": "private, best settings", "not_private": "not private"}
FIGURES = {"accuracy": "accuracy", "expected_calibration_error": "ECE"}


def settings_of(network: str, method: str, size: Size) -> dict[str, Setting]:
    """The settings of MNIST, without any tuning on garments; a Gaussian prior, none for SGD."""
    prior = "none" if method == "sgd" else "Gaussian"
    private, plain = (paper("fashion-mnist", network, method, prior, own, size) for own in (True, False))
    return dict(zip(KINDS, (private, best("fashion-mnist", network, method, size), plain), strict=True))


def jobs(size: Size) -> Sequence[Job]:
    """Four methods on two networks."""
    every = [settings_of(network, method, size) for network in NETWORKS for method in METHODS]
    return [run for settings in every for setting in settings.values() for run in runs_of(setting, size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each network and method."""
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
                        kind: {figure: figure_of(figure)(own) for figure in FIGURES} for kind, own in runs.items()
                    },
                }
            )
    return {"rows": rows}


def section(found: Results) -> str:
    """One table."""
    columns = ["network", "method", *(f"{kind}, {name}" for kind in KINDS.values() for name in FIGURES.values())]
    rows = [
        [
            NETWORKS[row["network"]],
            METHODS[row["method"]],
            *(spread(row["ours"][kind][figure]) for kind in KINDS for figure in FIGURES),
        ]
        for row in found["rows"]
    ]
    text = "The same networks, settings and budget as for MNIST; nothing was tuned on garments."
    return f"{text}\n\n{table(columns, rows)}"


def picture(found: Results) -> "Figure":
    """Accuracy."""
    figure, axes = panels(1, 2, height=60)
    for one, (network, name) in zip(axes, NETWORKS.items(), strict=True):
        rows = [row for row in found["rows"] if row["network"] == network]
        marks = {label: [row["ours"][kind]["accuracy"] for row in rows] for kind, label in KINDS.items()}
        dots(one, [METHODS[row["method"]] for row in rows], marks, "test accuracy", name)
    top_legend(figure, axes[0], columns=3)
    return figure


ITEM = Item("fashion", "Fashion-MNIST", jobs, results, section, picture)
