"""The reliability diagrams: accuracy against confidence, all panels of the paper's three figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpbnn import plots
from dpbnn.experiments.item import Item, Later, Results, Size
from dpbnn.experiments.pictures import Figure, titled
from dpbnn.experiments.settings import METHODS, paper
from dpbnn.experiments.training import Training, about, rounded
from dpbnn.experiments.words import markdown, table_of
from dpbnn.metrics import classification
from dpbnn.plots import style

__all__ = ["BAYESIAN", "ITEM", "PANELS", "panel_of", "title_of"]

BAYESIAN = ("sgld", "bbp", "mc_dropout")
PANELS = [
    *((method, prior, True) for prior in ("Gaussian", "none") for method in BAYESIAN),
    *((method, "none", False) for method in BAYESIAN),
    ("sgd", "none", False),
    ("sgd", "none", True),
]
"""Method, prior and whether the run is private; all on the MLP."""


def _template(size: Size) -> Results:
    """The bins of each panel, all seeds together."""
    return {"rows": [panel_of(*panel, size, "reliability", "bins", _pooled) for panel in PANELS]}


def panel_of(method: str, prior: str, is_private: bool, size: Size, kind: str, name: str, pool: Any) -> Results:
    """A row for a panel; `pool` makes the value `name` from the figures of this kind of all runs."""
    setting = paper("mnist", "mlp", method, prior, is_private, size)
    pooled = Later(Training.of(setting, size), lambda runs: pool([run[kind] for run in runs if run[kind]]))
    return {"method": method, "prior": prior, "is_private": is_private, **about(setting, size.seeds), name: pooled}


def title_of(row: Results) -> str:
    """The title of a panel."""
    prior = "no prior" if row["prior"] == "none" else f"{row['prior']} prior"
    return f"{'DP-' if row['is_private'] else ''}{METHODS[row['method']]}, {prior}"


def _pooled(runs: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[Any]]:
    """The bins of all runs together: counts added up, means weighted by counts."""
    count = torch.tensor([bins["count"] for bins in runs], dtype=torch.float64)
    pooled: dict[str, list[Any]] = {"count": count.sum(dim=0).long().tolist()}
    for name in ("confidence", "accuracy"):
        values = torch.stack([_tensor(bins[name]).float().double().nan_to_num(0.0) for bins in runs])
        pooled[name] = rounded((values * count).sum(dim=0) / count.sum(dim=0))
    return pooled


def _tensor(values: Sequence[float | None]) -> Tensor:
    """The values as a tensor, with NaN for None."""
    return torch.from_numpy(np.array(values, dtype=float))


def curve_of(bins: Mapping[str, Sequence[float | None]]) -> classification.ReliabilityCurve:
    """The bins as a curve of `dpbnn.metrics`."""
    edges = torch.linspace(0, 1, len(bins["count"]) + 1, dtype=torch.float64)
    confidence, accuracy = _tensor(bins["confidence"]), _tensor(bins["accuracy"])
    return classification.ReliabilityCurve(edges, confidence, accuracy, torch.tensor(bins["count"]))


def _section(results: Results) -> str:
    """The errors behind the panels; test images of all seeds are counted together."""

    def surplus(row: Results) -> str:
        curve = curve_of(row["bins"])
        gaps = (curve.confidence - curve.accuracy).nan_to_num(0.0)
        mean = float((gaps * curve.count).sum() / curve.count.sum())
        return f"{abs(mean):.3f} {'too sure' if mean > 0 else 'too cautious'}"

    return markdown(
        "On the MLP, at the paper's settings; the answers of all seeds together, so that errors differ a little from "
        "the medians above. Above the diagonal a network is too cautious, below it too sure; bars show how many "
        "answers have which confidence, and bins with few are pale.",
        table_of(
            results["rows"],
            ("", title_of),
            ("ECE", lambda row: f"{curve_of(row['bins']).expected_calibration_error:.3f}"),
            ("confidence beside accuracy, on average", surplus),
        ),
    )


def _picture(results: Results) -> Figure:
    count = len(results["rows"])
    figure, axes = style.panels((count + 2) // 3, 3, height=75)
    for panel, row in zip(axes, results["rows"], strict=False):
        plots.reliability_diagram(curve_of(row["bins"]), panel)
        titled(panel, title_of(row))
    for panel in axes[count:]:
        panel.set_visible(False)
    return figure


ITEM = Item("reliability", "Reliability diagrams", _template, _section, _picture)
