"""Accuracy of the private methods along training: the paper's first figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpbnn.experiments.along_the_way import AccuracyCurve
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import lines
from dpbnn.experiments.settings import METHODS, NETWORKS, paper
from dpbnn.experiments.words import by_accountant, paragraph, spread, table
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]


def runs_of(network: str, method: str, size: Size) -> list[AccuracyCurve]:
    """The paper's setting with a Gaussian prior."""
    setting = paper("mnist", network, method, "Gaussian", True, size)
    return [AccuracyCurve(setting, seed, size) for seed in range(size.seeds)]


def jobs(size: Size) -> Sequence[Job]:
    """Four methods on two networks."""
    return [run for network in NETWORKS for method in METHODS for run in runs_of(network, method, size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A curve for each method, network and seed."""
    rows = []
    for network in NETWORKS:
        for method in METHODS:
            runs = runs_of(network, method, size)
            own = [found[run.key] for run in runs]
            rows.append(
                {
                    "network": network,
                    "method": method,
                    "settings": runs[0].setting.to_json(),
                    "seeds": [run.seed for run in runs],
                    "epsilon": by_accountant(runs[0].setting.plan()),
                    "epoch": own[0]["epoch"],
                    "ours": [one["accuracy"] for one in own],
                }
            )
    return {"rows": rows}


def section(found: Results) -> str:
    """Where the curves are after some epochs."""
    rows = []
    for row in found["rows"]:
        cells = [spread([run[index] for run in row["ours"]]) for index in _places(row["epoch"])]
        rows.append([NETWORKS[row["network"]], f"DP-{METHODS[row['method']]}", *cells])
    text = paragraph("""
        At the paper's settings with a Gaussian prior: test accuracy of the posterior so far, by 10 draws, after a fifth
        of the training, half of it, and all but the last steps. Samples of DP-SGLD are kept in the last 100 steps
        alone; until then its posterior is the newest iterate. The test images are public and steer nothing.
    """)
    return f"{text}\n\n{table(['network', 'method', 'a fifth', 'half', 'all'], rows)}"


def _places(epochs: Sequence[float]) -> list[int]:
    """Where a fifth, half and all of the training are done."""
    return [next(i for i, epoch in enumerate(epochs) if epoch >= share * epochs[-1]) for share in (0.2, 0.5, 1.0)]


def picture(found: Results) -> "Figure":
    """A panel for each network."""
    figure, axes = style.panels(1, 2, height=70)
    for one, (network, name) in zip(axes, NETWORKS.items(), strict=True):
        rows = [row for row in found["rows"] if row["network"] == network]
        curves = {f"DP-{METHODS[row['method']]}": (row["epoch"], row["ours"]) for row in rows}
        lines(one, curves, ("epoch", "test accuracy"))
        one.set_title(name, loc="left", fontsize=8)
        one.set_ylim(0, 1)
    style.top_legend(figure, axes[0], columns=4)
    return figure


ITEM = Item("accuracy-by-epoch", "Accuracy by epoch", jobs, results, section, picture)
