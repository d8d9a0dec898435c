"""The accuracy table: four methods with their priors, private and not, on two networks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbnn.experiments.comparison import networks_of
from dpbnn.experiments.costs import Cost
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import compared
from dpbnn.experiments.recipes import best
from dpbnn.experiments.settings import METHODS, NETWORKS, paper
from dpbnn.experiments.training import found_by, runs_of
from dpbnn.experiments.words import by_accountant, figure_of, number, paragraph, private, spread, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

PAPER: dict[tuple[str, str], dict[str, Any]] = {
    ("sgld", "Gaussian"): {"mlp": [0.90, 0.95], "cnn": [0.95, 0.96], "seconds": 10},
    ("sgld", "Laplace"): {"mlp": [0.89, 0.90], "cnn": [0.89, 0.89], "seconds": 10},
    ("bbp", "Gaussian"): {"mlp": [0.80, 0.97], "cnn": [None, None], "seconds": 480},
    ("bbp", "Laplace"): {"mlp": [0.81, 0.98], "cnn": [None, None], "seconds": 480},
    ("mc_dropout", "Gaussian"): {"mlp": [0.78, 0.98], "cnn": [0.77, 0.97], "seconds": 9},
    ("sgd", "none"): {"mlp": [0.77, 0.97], "cnn": [0.95, 0.99], "seconds": 10},
}
"""Test accuracy, private and not, and seconds per epoch."""
accuracies = figure_of("accuracy")


def jobs(size: Size) -> Sequence[Job]:
    """The paper's settings, private and not; the best ones once for each method."""
    every: list[Job] = []
    for network in NETWORKS:
        for method, prior in PAPER:
            for is_private in (True, False):
                every += runs_of(paper("mnist", network, method, prior, is_private, size), size)
        for method in METHODS:
            every += runs_of(best("mnist", network, method, size), size)
    every += [cost_of(network, method, prior, size) for network in networks_of(size) for method, prior in PAPER]
    return every


def cost_of(network: str, method: str, prior: str, size: Size) -> Cost:
    """Of the private run."""
    return Cost(paper("mnist", network, method, prior, True, size), size)


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each method, prior and network."""
    rows = [_row(network, method, prior, size, found) for network in NETWORKS for method, prior in PAPER]
    return {"rows": rows}


def _row(network: str, method: str, prior: str, size: Size, found: Mapping[str, Found]) -> Results:
    private, plain = (paper("mnist", network, method, prior, own, size) for own in (True, False))
    runs = found_by(private, size, found)
    better = best("mnist", network, method, size) if prior != "Laplace" else None
    told = PAPER[method, prior]
    cost = found[cost_of(network, method, prior, size).key] if network in networks_of(size) else None
    return {
        "network": network,
        "method": method,
        "prior": prior,
        "settings": private.to_json(),
        "seeds": [run["seed"] for run in runs],
        "epsilon": by_accountant(private.plan()),
        "paper": {"private": told[network][0], "not_private": told[network][1], "seconds_per_epoch": told["seconds"]},
        "ours": {
            "private": accuracies(runs),
            "not_private": accuracies(found_by(plain, size, found)),
            "seconds_per_epoch": cost and cost["seconds_per_epoch"],
        },
        "best": better
        and {
            "settings": better.to_json(),
            "epsilon": by_accountant(better.plan()),
            "private": accuracies(found_by(better, size, found)),
        },
    }


def section(found: Results) -> str:
    """Two tables, and what they say."""
    parts = [
        paragraph("""
            The paper's settings: 15 epochs, batches of 256, clip norm 1.5, noise multiplier 1.3 (for DP-SGLD 1.272,
            which its learning rate means at temperature 1/2), rates 5e-6, 0.25, 2e-4 and 0.25. MC Dropout takes Adam,
            as the paper probably did: at that rate plain SGD hardly moves. DP-BBP is in its aligned form
            (docs/methods.md), not the paper's Algorithm 3, with initial standard deviation 0.1. Priors are those of the
            whole data set: their gradient is divided by n where the mean over records is taken, not added whole as the
            paper's Algorithms 1 and 4 print it. The best settings all spend 0.894 and have a Gaussian prior, also for
            SGD. How the paper trains without privacy it does not say: here without clipping, at the same rates on the
            MLP and at two fifths of them on the CNN, most runs of which collapsed at the whole rates; single ones still
            do. Seconds are those of private runs that have the machine to themselves; the paper's, one for each method,
            are from a P100 and stand beside the MLP.
        """)
    ]
    for network, name in NETWORKS.items():
        rows = [row for row in found["rows"] if row["network"] == network]
        columns = [
            name, "prior", "epsilon", "paper", "ours", "best found", "paper, not private", "ours, not private",
            "paper, s / epoch", "ours, s / epoch",
        ]  # fmt: skip
        lines = [
            [
                METHODS[row["method"]],
                row["prior"],
                private(row["epsilon"]["pld"]),
                number(row["paper"]["private"], 2),
                spread(row["ours"]["private"]),
                spread(row["best"]["private"]) if row["best"] else "-",
                number(row["paper"]["not_private"], 2),
                spread(row["ours"]["not_private"]),
                str(row["paper"]["seconds_per_epoch"]) if network == "mlp" else "-",
                number(row["ours"]["seconds_per_epoch"]),
            ]
            for row in rows
        ]
        parts.append(table(columns, lines))
    return "\n\n".join(parts)


def picture(found: Results) -> "Figure":
    """The paper's figure, ours, and the best found, for each method."""
    marks = {
        "paper": lambda row: [row["paper"]["private"]],
        "ours, paper's settings": lambda row: row["ours"]["private"],
        "ours, best settings": lambda row: row["best"]["private"] if row["best"] else [],
        "ours, not private": lambda row: row["ours"]["not_private"],
    }
    return compared(found["rows"], marks, "test accuracy", height=75)[0]


ITEM = Item("accuracy", "Accuracy", jobs, results, section, picture)
