"""The confidence histograms: how sure the private networks are of right and of wrong answers."""

from collections.abc import Mapping, Sequence

import torch

from dpbnn import plots
from dpbnn.experiments.item import Item, Results, Size
from dpbnn.experiments.pictures import Figure, titled
from dpbnn.experiments.reliability import PANELS, panel_of, title_of
from dpbnn.experiments.words import markdown, table_of
from dpbnn.metrics import classification
from dpbnn.plots import style

__all__ = ["ITEM"]


def _template(size: Size) -> Results:
    """The counts of each private panel of the reliability diagrams but SGD's, all seeds together."""
    panels = [panel for panel in PANELS if panel[2] and panel[0] != "sgd"]
    return {"rows": [panel_of(*panel, size, "confidence", "counts", _counts) for panel in panels]}


def _counts(runs: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    return {kind: torch.tensor([bins[kind] for bins in runs]).sum(dim=0).tolist() for kind in ("correct", "wrong")}


def _section(results: Results) -> str:
    """The share of right and of wrong answers whose confidence is in the uppermost bin."""

    def share(counts: Sequence[int]) -> str:
        return f"{100 * counts[-1] / max(1, sum(counts)):.1f} %"

    return markdown(
        """
        On the MLP, at the paper's settings, private; the answers of all seeds together. Of the right and of the wrong
        ones, so many are given with a confidence above 0.93 (the uppermost of 15 bins):
        """,
        table_of(
            results["rows"],
            ("", title_of),
            ("right", lambda row: share(row["counts"]["correct"])),
            ("wrong", lambda row: share(row["counts"]["wrong"])),
        ),
    )


def _picture(results: Results) -> Figure:
    """A panel for each row, as shares of the right and of the wrong answers."""
    figure, axes = style.panels(2, 3, height=60)
    for panel, row in zip(axes, results["rows"], strict=True):
        correct, wrong = (torch.tensor(row["counts"][kind]) for kind in ("correct", "wrong"))
        edges = torch.linspace(0, 1, len(correct) + 1, dtype=torch.float64)
        plots.confidence_histogram(classification.ConfidenceHistogram(edges, correct, wrong), panel, share=True)
        titled(panel, title_of(row))
    handles, _ = axes[0].get_legend_handles_labels()
    figure.legend(handles, ["right", "wrong"], loc="outside upper left", ncols=2, frameon=False, fontsize=7)
    return figure


ITEM = Item("confidence", "Confidence", _template, _section, _picture)
