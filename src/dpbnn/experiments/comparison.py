"""The paper's comparison of the methods, with measured figures instead of "low" and "high"."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dpbnn.experiments.costs import Cost
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.settings import METHODS, NETWORKS, Setting, paper
from dpbnn.experiments.words import by_accountant, number, paragraph, table
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM", "networks_of"]

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


def networks_of(size: Size) -> list[str]:
    """Both, or the one that two CPU cores are quick with."""
    return list(NETWORKS) if size.is_full else ["mlp"]


def setting_of(network: str, method: str, is_private: bool, size: Size) -> Setting:
    """The paper's, with a Gaussian prior; the joint form of BBP is that of the paper's Algorithm 3, with one draw."""
    if method != JOINT:
        return paper("mnist", network, method, "Gaussian", is_private, size)
    own = paper("mnist", network, "bbp", "Gaussian", is_private, size)
    return replace(own, method=replace(own.method, form="joint"))  # type: ignore[type-var]


def jobs(size: Size) -> Sequence[Job]:
    """Private and not."""
    return [
        Cost(setting_of(network, method, is_private, size), size)
        for network in networks_of(size)
        for method in ROWS
        for is_private in (True, False)
    ]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each network and method."""
    rows = []
    for network in networks_of(size):
        for method in ROWS:
            private, plain = (Cost(setting_of(network, method, own, size), size) for own in (True, False))
            row: Results = {"network": network, "method": method, "settings": private.setting.to_json()}
            row["epsilon"] = by_accountant(private.setting.plan())
            rows.append(row | {"private": found[private.key], "not_private": found[plain.key]})
    return {"seeds": [0], "draws": size.draws, "test_records": size.test_records, "paper": PAPER, "rows": rows}


def section(found: Results) -> str:
    """The paper's table, ours where words must do, and the measured one."""
    names = ["DP-SGLD", "DP-BBP", "DP-MC Dropout"]
    told = [[what, *cells] for what, cells in found["paper"].items()]
    ours = [[what, *cells] for what, cells in OURS.items()]
    rows = []
    for row in found["rows"]:
        own, plain = row["private"], row["not_private"]
        (base,) = [r["private"] for r in found["rows"] if (r["network"], r["method"]) == (row["network"], "sgd")]
        rows.append(
            [
                NETWORKS[row["network"]],
                _name(row["method"]),
                number(own["seconds_per_epoch"]),
                f"{own['seconds_per_epoch'] / base['seconds_per_epoch']:.2f}x",
                f"{own['seconds_per_epoch'] / plain['seconds_per_epoch']:.2f}x",
                "-" if own["training_bytes"] is None else f"{own['training_bytes'] / 2**20:.0f} MiB",
                f"{own['release_bytes'] / 2**20:.1f} MiB",
                f"{own['release_bytes'] / (4 * own['weights']):.1f}x",
                number(own["prediction_seconds"]),
            ]
        )
    columns = [
        "network", "method", "s / epoch", "over DP-SGD", "over the same without privacy", "memory in training",
        "release", "over one set of weights", "prediction, s",
    ]  # fmt: skip
    return "\n\n".join(
        [
            "As the paper has it:",
            table(["", *names], told),
            "As it is here, where words must do:",
            table(["", *names], ours),
            paragraph(f"""
                And measured, one run each, at the paper's settings with a Gaussian prior; memory is what training takes
                beside the data, and prediction is of {found["test_records"]:,} images by {found["draws"]} draws. DP-BBP
                in its aligned form draws its weights once for the batch, so that clipping is by book-keeping of
                activations and output gradients as for the others (what the paper calls the outer product): the paper's
                "high" and "no" do not hold for it. The joint form is the paper's Algorithm 3 with one draw. MC
                Dropout's time includes Adam's. Differences of a tenth are chance.
            """),
            table(columns, rows),
        ]
    )


def _name(method: str) -> str:
    return f"DP-{METHODS[method]}" if method in METHODS else "DP-BBP, joint form"


def picture(found: Results) -> "Figure":
    """Seconds for an epoch, and the size of a release."""
    networks = dict.fromkeys(row["network"] for row in found["rows"])
    figure, axes = style.panels(len(networks), 2, height=50)
    for index, network in enumerate(networks):
        rows = [row for row in found["rows"] if row["network"] == network]
        names = [_name(row["method"]) for row in rows]
        left, right = axes[2 * index], axes[2 * index + 1]
        left.barh(names, [row["private"]["seconds_per_epoch"] for row in rows], color=style.BLUE)
        left.set_xlabel("seconds / epoch")
        right.plot([row["private"]["release_bytes"] / 2**20 for row in rows], names, "D", color=style.VERMILION)
        right.set_xscale("log")
        right.xaxis.set_major_formatter("{x:g}")
        right.grid(axis="x", linewidth=0.3)
        right.set_xlabel("size of the release, MiB (log)")
        for one in (left, right):
            one.set_ylim(len(names) - 0.5, -0.5)
            titled(one, NETWORKS[network])
    return figure


ITEM = Item("comparison", "The methods compared", jobs, results, section, picture)
