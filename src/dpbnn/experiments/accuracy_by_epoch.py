"""Accuracy of the private methods along training: the paper's first figure."""

from itertools import product
from typing import Any

import dpbnn
from dpbnn.data import Images
from dpbnn.experiments.item import Item, Outcome, Results, Size, each, first
from dpbnn.experiments.pictures import Figure, lines, titled
from dpbnn.experiments.settings import METHODS, NETWORKS, paper
from dpbnn.experiments.training import SeededRun, about, rounded
from dpbnn.experiments.words import NETWORK, by_network, markdown, spread, table_of
from dpbnn.plots import style

__all__ = ["ITEM"]


class AccuracyCurve(SeededRun):
    """A run of any method whose posterior so far is tried on the test images some twenty times; a job."""

    purpose, at_once, depends_on = "watched", False, ("test_records",)

    def fit(self, data: Images, **more: Any) -> dpbnn.Release:
        """Train with the test images as public data, on which `fit` measures accuracy along the way."""
        return super().fit(data, public_data=(data.x_test, data.y_test), **more)

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """The epochs and the accuracies of the run's history."""
        epochs = self.setting.batch_size / self.setting.records
        steps, accuracies = ([point[name] for point in release.history] for name in ("step", "public_accuracy"))
        return {"epoch": rounded([step * epochs for step in steps], 3), "accuracy": rounded(accuracies)}


def _template(size: Size) -> Results:
    """A curve for each method, network and seed, at the paper's settings with a Gaussian prior."""
    rows = []
    for network, method in product(NETWORKS, METHODS):
        setting = paper("mnist", network, method, "Gaussian", True, size)
        runs = AccuracyCurve.of(setting, size)
        curve = {"epoch": first(runs, "epoch"), "ours": each(runs, "accuracy")}
        rows.append({"network": network, "method": method, **about(setting, size.seeds), **curve})
    return {"rows": rows}


def _section(results: Results) -> str:
    def at(row: Results, share: float) -> str:
        place = next(i for i, epoch in enumerate(row["epoch"]) if epoch >= share * row["epoch"][-1])
        return spread([run[place] for run in row["ours"]])

    return markdown(
        """
        At the paper's settings with a Gaussian prior: test accuracy of the posterior so far, by 10 draws, after a fifth
        of the training, half of it, and all but the last steps. Samples of DP-SGLD are kept in the last 100 steps
        alone; until then its posterior is the newest iterate. The test images are public and steer nothing.
        """,
        table_of(
            results["rows"],
            NETWORK,
            ("method", lambda row: f"DP-{METHODS[row['method']]}"),
            ("a fifth", lambda row: at(row, 0.2)),
            ("half", lambda row: at(row, 0.5)),
            ("all", lambda row: at(row, 1.0)),
        ),
    )


def _picture(results: Results) -> Figure:
    figure, axes = style.panels(1, 2, height=70)
    for panel, (name, rows) in zip(axes, by_network(results["rows"]).items(), strict=True):
        curves = {f"DP-{METHODS[row['method']]}": (row["epoch"], row["ours"]) for row in rows}
        lines(panel, curves, ("epoch", "test accuracy"))
        titled(panel, name)
        panel.set_ylim(0, 1)
    style.top_legend(figure, axes[0], columns=4)
    return figure


ITEM = Item("accuracy-by-epoch", "Accuracy by epoch", _template, _section, _picture)
