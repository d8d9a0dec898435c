"""The confidence histograms: how sure the private networks are of right and of wrong answers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from dpbnn import plots
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.reliability import PANELS, named, settings_of
from dpbnn.experiments.training import found_by, runs_of
from dpbnn.experiments.words import by_accountant, paragraph, table
from dpbnn.metrics import classification
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

SHOWN = [index for index, (method, _, is_private) in enumerate(PANELS) if is_private and method != "sgd"]


def jobs(size: Size) -> Sequence[Job]:
    """Runs of the calibration table."""
    return [run for index in SHOWN for run in runs_of(settings_of(size)[index], size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """Of each panel the counts, all seeds together."""
    rows = []
    for index in SHOWN:
        setting = settings_of(size)[index]
        runs = found_by(setting, size, found)
        about = dict(zip(("method", "prior", "is_private"), PANELS[index], strict=True))
        counts = {
            kind: torch.tensor([run["confidence"][kind] for run in runs if run["confidence"]]).sum(dim=0).tolist()
            for kind in ("correct", "wrong")
        }
        about |= {"settings": setting.to_json(), "seeds": [run["seed"] for run in runs]}
        rows.append(about | {"epsilon": by_accountant(setting.plan()), "counts": counts})
    return {"rows": rows}


def section(found: Results) -> str:
    """How much of the right and of the wrong is said with a confidence in the uppermost bin."""
    rows = []
    for row in found["rows"]:
        shares = []
        for kind in ("correct", "wrong"):
            counts = torch.tensor(row["counts"][kind], dtype=torch.float64)
            shares.append(f"{100 * float(counts[-1] / counts.sum().clamp_min(1)):.1f} %")
        rows.append([named(row["method"], row["prior"], row["is_private"]), *shares])
    text = paragraph("""
        On the MLP, at the paper's settings, private; the answers of all seeds together. Of the right and of the wrong
        ones, so many are given with a confidence above 0.93 (the uppermost of 15 bins):
    """)
    return f"{text}\n\n{table(['', 'right', 'wrong'], rows)}"


def picture(found: Results) -> "Figure":
    """A panel for each, as shares of the right and of the wrong."""
    figure, axes = style.panels(2, 3, height=60)
    for one, row in zip(axes, found["rows"], strict=True):
        correct, wrong = (torch.tensor(row["counts"][kind]) for kind in ("correct", "wrong"))
        edges = torch.linspace(0, 1, len(correct) + 1, dtype=torch.float64)
        plots.confidence_histogram(classification.ConfidenceHistogram(edges, correct, wrong), one, share=True)
        titled(one, named(row["method"], row["prior"], row["is_private"]))
    handles, _ = axes[0].get_legend_handles_labels()
    figure.legend(handles, ["right", "wrong"], loc="outside upper left", ncols=2, frameon=False, fontsize=7)
    return figure


ITEM = Item("confidence", "Confidence", jobs, results, section, picture)
