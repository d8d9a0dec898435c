"""The reliability diagrams: accuracy against confidence, all panels of the paper's three figures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dpbnn import plots
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.settings import METHODS, Setting, paper
from dpbnn.experiments.training import found_by, runs_of
from dpbnn.experiments.words import by_accountant, table
from dpbnn.metrics import classification
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM", "PANELS", "named", "settings_of"]

BAYESIAN = ("sgld", "bbp", "mc_dropout")
PANELS = [
    *((method, prior, True) for prior in ("Gaussian", "none") for method in BAYESIAN),
    *((method, "none", False) for method in BAYESIAN),
    ("sgd", "none", False),
    ("sgd", "none", True),
]
"""Method, prior and whether it is private; on the MLP."""


def settings_of(size: Size) -> list[Setting]:
    """One for each panel."""
    return [paper("mnist", "mlp", method, prior, is_private, size) for method, prior, is_private in PANELS]


def named(method: str, prior: str, is_private: bool) -> str:
    """The title of a panel."""
    return f"{'DP-' if is_private else ''}{METHODS[method]}, {'no prior' if prior == 'none' else f'{prior} prior'}"


def jobs(size: Size) -> Sequence[Job]:
    """The runs of the accuracy and calibration tables."""
    return [run for setting in settings_of(size) for run in runs_of(setting, size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """Of each panel the bins, all seeds together."""
    rows = []
    for panel, setting in zip(PANELS, settings_of(size), strict=True):
        runs = found_by(setting, size, found)
        bins = _pooled([run["reliability"] for run in runs if run["reliability"]])
        about = dict(zip(("method", "prior", "is_private"), panel, strict=True))
        about |= {"settings": setting.to_json(), "seeds": [run["seed"] for run in runs]}
        rows.append(about | {"epsilon": by_accountant(setting.plan()), "bins": bins})
    return {"rows": rows}


def _pooled(every: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[Any]]:
    """Counts add up; means are averaged by them."""
    count = torch.tensor([own["count"] for own in every], dtype=torch.float64)
    pooled: dict[str, list[Any]] = {"count": count.sum(dim=0).long().tolist()}
    for name in ("confidence", "accuracy"):
        values = torch.tensor([[0.0 if value is None else value for value in own[name]] for own in every])
        mean = (values.double() * count).sum(dim=0) / count.sum(dim=0)
        pooled[name] = [None if value != value else round(value, 5) for value in mean.tolist()]
    return pooled


def curve_of(bins: Mapping[str, Sequence[float | None]]) -> classification.ReliabilityCurve:
    """As `dpbnn.metrics` has it."""
    edges = torch.linspace(0, 1, len(bins["count"]) + 1, dtype=torch.float64)
    confidence, accuracy = (
        torch.tensor([float("nan") if value is None else value for value in bins[name]], dtype=torch.float64)
        for name in ("confidence", "accuracy")
    )
    return classification.ReliabilityCurve(edges, confidence, accuracy, torch.tensor(bins["count"]))


def section(found: Results) -> str:
    """The errors behind the panels; test images of all seeds are counted together."""
    rows = []
    for row in found["rows"]:
        curve = curve_of(row["bins"])
        surplus = (curve.confidence - curve.accuracy).nan_to_num(0.0)
        mean = float((surplus * curve.count).sum() / curve.count.sum())
        side = "too sure" if mean > 0 else "too cautious"
        title = named(row["method"], row["prior"], row["is_private"])
        rows.append([title, f"{curve.expected_calibration_error:.3f}", f"{abs(mean):.3f} {side}"])
    text = (
        "On the MLP, at the paper's settings; the answers of all seeds together, so that errors differ a little from "
        "the medians above. Above the diagonal a network is too cautious, below it too sure; bars show how many "
        "answers have which confidence, and bins with few are pale."
    )
    return f"{text}\n\n{table(['', 'ECE', 'confidence beside accuracy, on average'], rows)}"


def picture(found: Results) -> "Figure":
    """A panel for each."""
    count = len(found["rows"])
    figure, axes = style.panels((count + 2) // 3, 3, height=75)
    for one, row in zip(axes, found["rows"], strict=False):
        plots.reliability_diagram(curve_of(row["bins"]), one)
        titled(one, named(row["method"], row["prior"], row["is_private"]))
    for one in axes[count:]:
        one.set_visible(False)
    return figure


ITEM = Item("reliability", "Reliability diagrams", jobs, results, section, picture)
