"""Accuracy of the private methods along training: the paper's first figure."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import product
from typing import Any

from dpbnn.experiments.item import Item, Outcome, Results, Size, each, first
from dpbnn.experiments.pictures import Figure, lines
from dpbnn.experiments.settings import METHODS, NETWORKS, paper
from dpbnn.experiments.training import ImageRun, about
from dpbnn.experiments.words import NETWORK, by_network, paragraph, spread, table_of
from dpbnn.plots import style

__all__ = ["ITEM"]


class AccuracyCurve(ImageRun):
    """A run of any method whose posterior so far is tried on the test images some twenty times; a job."""

    purpose = "watched"

    @property
    def together(self) -> Hashable:
        """Alone."""
        return self.key

    @property
    def measured(self) -> dict[str, Any]:
        """So many images."""
        return {"test_records": self.size.test_records}

    @classmethod
    def run_all(cls, jobs: "Sequence[AccuracyCurve]", device: str) -> Iterator[Outcome]:
        """One after another."""
        for job in jobs:
            setting, data = job.setting, job.images(device)
            history = job.fit(data, device, public_data=(data.x_test, data.y_test)).history
            epochs = [round(point["step"] * setting.batch_size / setting.records, 3) for point in history]
            yield {"epoch": epochs, "accuracy": [round(point["public_accuracy"], 5) for point in history]}


def template(size: Size) -> Results:
    """A curve for each method, network and seed, at the paper's settings with a Gaussian prior."""
    rows = []
    for network, method in product(NETWORKS, METHODS):
        setting = paper("mnist", network, method, "Gaussian", True, size)
        runs = AccuracyCurve.of(setting, size)
        epochs = first(runs, "epoch")
        ours = each(runs, "accuracy")
        rows.append({"network": network, "method": method, **about(setting, size), "epoch": epochs, "ours": ours})
    return {"rows": rows}


def section(results: Results) -> str:
    """Where the curves are after some epochs."""

    def at(row: Results, share: float) -> str:
        place = next(i for i, epoch in enumerate(row["epoch"]) if epoch >= share * row["epoch"][-1])
        return spread([run[place] for run in row["ours"]])

    text = paragraph("""
        At the paper's settings with a Gaussian prior: test accuracy of the posterior so far, by 10 draws, after a fifth
        of the training, half of it, and all but the last steps. Samples of DP-SGLD are kept in the last 100 steps
        alone; until then its posterior is the newest iterate. The test images are public and steer nothing.
    """)
    table = table_of(
        results["rows"],
        NETWORK,
        ("method", lambda row: f"DP-{METHODS[row['method']]}"),
        ("a fifth", lambda row: at(row, 0.2)),
        ("half", lambda row: at(row, 0.5)),
        ("all", lambda row: at(row, 1.0)),
    )
    return f"{text}\n\n{table}"


def picture(results: Results) -> Figure:
    """A panel for each network."""
    figure, axes = style.panels(1, 2, height=70)
    for panel, (name, rows) in zip(axes, by_network(results["rows"]).items(), strict=True):
        curves = {f"DP-{METHODS[row['method']]}": (row["epoch"], row["ours"]) for row in rows}
        lines(panel, curves, ("epoch", "test accuracy"))
        panel.set_title(name, loc="left", fontsize=8)
        panel.set_ylim(0, 1)
    style.top_legend(figure, axes[0], columns=4)
    return figure


ITEM = Item("accuracy-by-epoch", "Accuracy by epoch", template, section, picture)
