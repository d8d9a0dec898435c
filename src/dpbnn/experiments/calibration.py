"""The two calibration tables: expected and largest calibration error, with and without a Gaussian prior."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import compared
from dpbnn.experiments.recipes import best
from dpbnn.experiments.settings import METHODS, NETWORKS, paper
from dpbnn.experiments.training import found_by, runs_of
from dpbnn.experiments.words import by_accountant, figure_of, number, spread, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

PAPER: dict[tuple[str, str, str], list[float]] = {
    ("mlp", "bbp", "Gaussian"): [0.204, 0.641, 0.024, 0.052],
    ("mlp", "bbp", "none"): [0.167, 0.141, 0.166, 0.166],
    ("mlp", "sgld", "Gaussian"): [0.007, 0.175, 0.035, 0.175],
    ("mlp", "sgld", "none"): [0.126, 0.465, 0.008, 0.289],
    ("mlp", "mc_dropout", "Gaussian"): [0.008, 0.080, 0.030, 0.041],
    ("mlp", "mc_dropout", "none"): [0.078, 0.225, 0.002, 0.725],
    ("mlp", "sgd", "Gaussian"): [0.013, 0.089, 0.016, 0.139],
    ("mlp", "sgd", "none"): [0.106, 0.625, 0.005, 0.299],
    ("cnn", "sgld", "Gaussian"): [0.003, 0.775, 0.001, 0.011],
    ("cnn", "sgld", "none"): [0.043, 0.371, 0.006, 0.219],
    ("cnn", "mc_dropout", "Gaussian"): [0.001, 0.275, 0.030, 0.325],
    ("cnn", "mc_dropout", "none"): [0.033, 0.230, 0.003, 0.225],
    ("cnn", "sgd", "Gaussian"): [0.005, 0.391, 0.002, 0.059],
    ("cnn", "sgd", "none"): [0.037, 0.365, 0.014, 0.325],
}
"""ECE and MCE, private; then both without privacy."""
KINDS = ("private_ece", "private_mce", "ece", "mce")
ece, mce = figure_of("expected_calibration_error"), figure_of("maximum_calibration_error")


def jobs(size: Size) -> Sequence[Job]:
    """All methods on both networks, with and without prior, private and not; and the best ones."""
    every: list[Job] = []
    for network in NETWORKS:
        for method in METHODS:
            every += runs_of(best("mnist", network, method, size), size)
            for prior in ("Gaussian", "none"):
                for is_private in (True, False):
                    every += runs_of(paper("mnist", network, method, prior, is_private, size), size)
    return every


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each network, method and prior."""
    rows = []
    for network in NETWORKS:
        for method in METHODS:
            better = best("mnist", network, method, size)
            for prior in ("Gaussian", "none"):
                private, plain = (paper("mnist", network, method, prior, own, size) for own in (True, False))
                runs, others = (found_by(setting, size, found) for setting in (private, plain))
                told = PAPER.get((network, method, prior))
                row: dict[str, Any] = {"network": network, "method": method, "prior": prior}
                row |= {"settings": private.to_json(), "seeds": [run["seed"] for run in runs]}
                row["epsilon"] = by_accountant(private.plan())
                row["paper"] = dict(zip(KINDS, told, strict=True)) if told else None
                row["ours"] = dict(zip(KINDS, (ece(runs), mce(runs), ece(others), mce(others)), strict=True))
                row["best"] = None
                if prior == "Gaussian":
                    own = found_by(better, size, found)
                    row["best"] = {"settings": better.to_json(), "private_ece": ece(own), "private_mce": mce(own)}
                rows.append(row)
    return {"bins": 15, "rows": rows}


def section(found: Results) -> str:
    """A table for each network."""
    parts = [
        f"Calibration errors of the top label in {found['bins']} bins of equal width; the paper does not say how many "
        "it took. MCE is that of the worst bin, however few records are in it: mostly chance. The paper's DP-BBP "
        "without prior on the MLP has ECE 0.167 and MCE 0.141: an average over bins cannot be larger than the largest. "
        "Most of its small private errors are not reached at its settings; that of MC Dropout on the CNN, which hardly "
        "learns with half of its units dropped, not by far. A run that collapses to one class has an ECE near 0.9."
    ]
    for network, name in NETWORKS.items():
        columns = [
            name,
            "prior",
            "DP-ECE, paper",
            "ours",
            "DP-MCE, paper",
            "ours",
            "ECE, paper",
            "ours",
            "MCE, paper",
            "ours",
        ]
        lines = []
        for row in found["rows"]:
            if row["network"] == network:
                told = row["paper"] or {}
                pairs = [[number(told.get(kind)), spread(row["ours"][kind])] for kind in KINDS]
                lines.append([METHODS[row["method"]], row["prior"], *(cell for pair in pairs for cell in pair)])
        parts.append(table(columns, lines))
    better = [
        [
            NETWORKS[row["network"]],
            METHODS[row["method"]],
            spread(row["best"]["private_ece"]),
            spread(row["best"]["private_mce"]),
        ]
        for row in found["rows"]
        if row["best"]
    ]
    parts += ["At the best settings found:", table(["network", "method", "DP-ECE", "DP-MCE"], better)]
    return "\n\n".join(parts)


def picture(found: Results) -> "Figure":
    """Expected calibration errors: the paper's, ours, and at the best settings."""
    marks = {
        "paper": lambda row: [row["paper"]["private_ece"]] if row["paper"] else [],
        "ours, paper's settings": lambda row: row["ours"]["private_ece"],
        "ours, best settings": lambda row: row["best"]["private_ece"] if row["best"] else [],
        "ours, not private": lambda row: row["ours"]["ece"],
    }
    figure, axes = compared(found["rows"], marks, "expected calibration error (log)", height=85)
    for one in axes:
        one.set_xscale("log")
        one.xaxis.set_major_formatter("{x:g}")
    return figure


ITEM = Item("calibration", "Calibration", jobs, results, section, picture)
