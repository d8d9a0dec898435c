"""The paper's comparison of the methods, with measured figures instead of "low" and "high"."""

from dataclasses import replace
from itertools import product

from dpbnn.experiments.costs import Cost, networks_of
from dpbnn.experiments.item import Item, Later, Results, Size
from dpbnn.experiments.pictures import Figure, titled
from dpbnn.experiments.settings import METHODS, Setting, paper
from dpbnn.experiments.training import epsilons
from dpbnn.experiments.words import NETWORK, by_network, number, paragraph, table, table_of
from dpbnn.plots import style

__all__ = ["ITEM"]

PAPER = {
    "general weight prior": ["yes", "yes", "no"],
    "general network architecture": ["yes", "no", "yes"],
    "general optimizers": ["-", "yes", "yes"],
    "computational complexity": ["low", "high", "low"],
    "storage memory cost": ["high", "low", "low"],
    "accelerable by outer product": ["yes", "no", "yes"],
    "analytic posterior distribution": ["no", "yes", "no"],
}
"""Of DP-SGLD, DP-BBP and DP-MC Dropout."""
OURS = {
    "general weight prior": ["any", "any", "any, as a penalty"],
    "general network architecture": ["any", "any (aligned form)", "any with dropout"],
    "general optimizers": ["none: the step is the sampler", "any of torch.optim", "any of torch.optim"],
    "analytic posterior distribution": ["no; or a Gaussian summary", "a Gaussian for each weight", "no"],
}
"""What cannot be measured."""
JOINT = "bbp, joint form"
ROWS = ("sgld", "bbp", JOINT, "mc_dropout", "sgd")


def template(size: Size) -> Results:
    """A row for each network and method, private and not."""
    rows = []
    for network, method in product(networks_of(size), ROWS):
        dp, plain = (_setting(network, method, is_private, size) for is_private in (True, False))
        row = {"network": network, "method": method, "settings": dp.to_json(), "epsilon": epsilons(dp)}
        rows.append(row | {"private": _cost(dp, size), "not_private": _cost(plain, size)})
    return {"seeds": [0], "draws": size.draws, "test_records": size.test_records, "paper": PAPER, "rows": rows}


def _cost(setting: Setting, size: Size) -> Later:
    return Later([Cost(setting, 0, size)], lambda runs: runs[0])


def _setting(network: str, method: str, is_private: bool, size: Size) -> Setting:
    """The paper's, with a Gaussian prior; the joint form of BBP is that of the paper's Algorithm 3, with one draw."""
    if method != JOINT:
        return paper("mnist", network, method, "Gaussian", is_private, size)
    aligned = paper("mnist", network, "bbp", "Gaussian", is_private, size)
    return replace(aligned, method=replace(aligned.method, form="joint"))  # type: ignore[type-var]


def section(results: Results) -> str:
    """The paper's table, ours where words must do, and the measured one."""
    methods = ["", "DP-SGLD", "DP-BBP", "DP-MC Dropout"]
    seconds = {(row["network"], row["method"]): row["private"]["seconds_per_epoch"] for row in results["rows"]}

    def times(row: Results, other: float) -> str:
        return f"{row['private']['seconds_per_epoch'] / other:.2f}x"

    def mebibytes(size: float | None, decimals: int) -> str:
        return "-" if size is None else f"{size / 2**20:.{decimals}f} MiB"

    measured = table_of(
        results["rows"],
        NETWORK,
        ("method", _name),
        ("s / epoch", lambda row: number(row["private"]["seconds_per_epoch"])),
        ("over DP-SGD", lambda row: times(row, seconds[row["network"], "sgd"])),
        ("over the same without privacy", lambda row: times(row, row["not_private"]["seconds_per_epoch"])),
        ("memory in training", lambda row: mebibytes(row["private"]["training_bytes"], 0)),
        ("release", lambda row: mebibytes(row["private"]["release_bytes"], 1)),
        (
            "over one set of weights",
            lambda row: f"{row['private']['release_bytes'] / (4 * row['private']['weights']):.1f}x",
        ),
        ("prediction, s", lambda row: number(row["private"]["prediction_seconds"])),
    )
    return "\n\n".join(
        [
            "As the paper has it:",
            table(methods, [[what, *cells] for what, cells in results["paper"].items()]),
            "As it is here, where words must do:",
            table(methods, [[what, *cells] for what, cells in OURS.items()]),
            paragraph(f"""
                And measured, one run each, at the paper's settings with a Gaussian prior; memory is what training takes
                beside the data, and prediction is of {results["test_records"]:,} images by {results["draws"]} draws.
                DP-BBP in its aligned form draws its weights once for the batch, so that clipping is by book-keeping of
                activations and output gradients as for the others (what the paper calls the outer product): the paper's
                "high" and "no" do not hold for it. The joint form is the paper's Algorithm 3 with one draw. MC
                Dropout's time includes Adam's. Differences of a tenth are chance.
            """),
            measured,
        ]
    )


def _name(row: Results) -> str:
    return "DP-BBP, joint form" if row["method"] == JOINT else f"DP-{METHODS[row['method']]}"


def picture(results: Results) -> Figure:
    """Seconds for an epoch, and the size of a release."""
    groups = by_network(results["rows"])
    figure, axes = style.panels(len(groups), 2, height=50)
    for left, right, (title, rows) in zip(axes[::2], axes[1::2], groups.items(), strict=True):
        names = list(map(_name, rows))
        left.barh(names, [row["private"]["seconds_per_epoch"] for row in rows], color=style.BLUE)
        left.set_xlabel("seconds / epoch")
        right.plot([row["private"]["release_bytes"] / 2**20 for row in rows], names, "D", color=style.VERMILION)
        right.set_xscale("log")
        right.xaxis.set_major_formatter("{x:g}")
        right.grid(axis="x", linewidth=0.3)
        right.set_xlabel("size of the release, MiB (log)")
        for panel in (left, right):
            panel.set_ylim(len(names) - 0.5, -0.5)
            titled(panel, title)
    return figure


ITEM = Item("comparison", "The methods compared", template, section, picture)
