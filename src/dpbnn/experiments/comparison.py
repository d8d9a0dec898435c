"""The paper's comparison of the methods, with measured figures instead of "low" and "high"."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

import dpbnn
from dpbnn.data import Images
from dpbnn.experiments.item import Item, Later, Outcome, Results, Size
from dpbnn.experiments.pictures import Figure, titled
from dpbnn.experiments.settings import METHODS, Setting, networks_of, paper
from dpbnn.experiments.training import SeededRun, epsilons
from dpbnn.experiments.words import NETWORK, by_network, markdown, number, table, table_of
from dpbnn.plots import style

__all__ = ["ITEM", "Cost"]

PAPER = {
    "general weight prior": ["yes", "yes", "no"],
    "general network architecture": ["yes", "no", "yes"],
    "general optimizers": ["-", "yes", "yes"],
    "computational complexity": ["low", "high", "low"],
    "storage memory cost": ["high", "low", "low"],
    "accelerable by outer product": ["yes", "no", "yes"],
    "analytic posterior distribution": ["no", "yes", "no"],
}
"""The paper's entries for DP-SGLD, DP-BBP and DP-MC Dropout."""
OURS = {
    "general weight prior": ["any", "any", "any, as a penalty"],
    "general network architecture": ["any", "any (aligned form)", "any with dropout"],
    "general optimizers": ["none: the step is the sampler", "any of torch.optim", "any of torch.optim"],
    "analytic posterior distribution": ["no; or a Gaussian summary", "a Gaussian for each weight", "no"],
}
"""Our entries in the rows that cannot be measured."""
JOINT = "bbp, joint form"
ROWS = ("sgld", "bbp", JOINT, "mc_dropout", "sgd")


class Cost(SeededRun):
    """A run that is trained twice and timed the second time, because the first includes all set-up; a job."""

    purpose, at_once = "cost", False

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """Seconds and bytes; no other job runs meanwhile."""
        seconds, peak = _timed(partial(self.fit, data))
        predict = partial(release.predict, data.x_test, num_draws=self.size.draws, seed=0)
        predict()
        predicting, _ = _timed(predict)
        return {
            "seconds_per_epoch": round(seconds / self.setting.epochs, 4),
            "prediction_seconds": round(predicting, 4),
            "training_bytes": peak,
            "release_bytes": _size_of(release),
            "weights": sum(p.numel() for p in release.model.parameters()),
        }


def _timed(call: Callable[[], object]) -> tuple[float, int | None]:
    """The seconds that a call takes, and on a GPU the most bytes that it takes meanwhile."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated() - before if on_gpu else None


def _size_of(release: dpbnn.Release) -> int:
    """The bytes of the folder that the release is saved to."""
    with tempfile.TemporaryDirectory() as folder:
        release.save(Path(folder) / "release")
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def _template(size: Size) -> Results:
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
    """The paper's setting with a Gaussian prior; the joint form of BBP is the paper's Algorithm 3 with one draw."""
    if method != JOINT:
        return paper("mnist", network, method, "Gaussian", is_private, size)
    aligned = paper("mnist", network, "bbp", "Gaussian", is_private, size)
    return replace(aligned, method=replace(aligned.method, form="joint"))  # type: ignore[type-var]


def _section(results: Results) -> str:
    """The paper's table, our entries in words, and the measured figures."""
    methods = ["", "DP-SGLD", "DP-BBP", "DP-MC Dropout"]
    seconds = {(row["network"], row["method"]): row["private"]["seconds_per_epoch"] for row in results["rows"]}

    def times(row: Results, other: float) -> str:
        return f"{row['seconds_per_epoch'] / other:.2f}x"

    def mebibytes(size: float | None, decimals: int) -> str:
        return "-" if size is None else f"{size / 2**20:.{decimals}f} MiB"

    return markdown(
        "As the paper has it:",
        table(methods, [[what, *cells] for what, cells in results["paper"].items()]),
        "As it is here, where words must do:",
        table(methods, [[what, *cells] for what, cells in OURS.items()]),
        f"""
        And measured, one run each, at the paper's settings with a Gaussian prior; memory is what training takes beside
        the data, and prediction is of {results["test_records"]:,} images by {results["draws"]} draws. DP-BBP in its
        aligned form draws its weights once for the batch, so that clipping is by book-keeping of activations and output
        gradients as for the others (what the paper calls the outer product): the paper's "high" and "no" do not hold
        for it. The joint form is the paper's Algorithm 3 with one draw. MC Dropout's time includes Adam's. Differences
        of a tenth are chance.
        """,
        table_of(
            [row | row["private"] for row in results["rows"]],
            NETWORK,
            ("method", _name),
            ("s / epoch", lambda row: number(row["seconds_per_epoch"])),
            ("over DP-SGD", lambda row: times(row, seconds[row["network"], "sgd"])),
            ("over the same without privacy", lambda row: times(row, row["not_private"]["seconds_per_epoch"])),
            ("memory in training", lambda row: mebibytes(row["training_bytes"], 0)),
            ("release", lambda row: mebibytes(row["release_bytes"], 1)),
            ("over one set of weights", lambda row: f"{row['release_bytes'] / (4 * row['weights']):.1f}x"),
            ("prediction, s", lambda row: number(row["prediction_seconds"])),
        ),
    )


def _name(row: Results) -> str:
    return "DP-BBP, joint form" if row["method"] == JOINT else f"DP-{METHODS[row['method']]}"


def _picture(results: Results) -> Figure:
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


ITEM = Item("comparison", "The methods compared", _template, _section, _picture)
