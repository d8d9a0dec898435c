"""Beyond the paper: does uncertainty tell images of another kind apart? MNIST against Fashion-MNIST."""

from copy import deepcopy
from itertools import product

from dpbnn.experiments.item import Item, Results, Size
from dpbnn.experiments.pictures import Figure, compared
from dpbnn.experiments.settings import METHODS
from dpbnn.experiments.training import rows_in_three_ways
from dpbnn.experiments.words import METHOD, NETWORK, WAYS, in_three_ways, markdown, table_of

__all__ = ["ITEM"]

SCORES = {"mutual_information": "mutual information", "entropy": "entropy"}
PRIORS = dict.fromkeys(METHODS, "Gaussian")


def _template(size: Size) -> Results:
    """The area under the ROC curve by each score: four methods on two networks, in three ways."""
    return rows_in_three_ways("mnist", PRIORS, "foreign", SCORES, size)


def _section(results: Results) -> str:
    text = (
        "Trained on MNIST, asked about test images of MNIST and of Fashion-MNIST (standardized by MNIST's constants). "
        "The area under the ROC curve is the share of pairs in which the garment gets the higher score; 0.5 is chance. "
        "A point estimate has no mutual information."
    )
    rows = deepcopy(results["rows"])
    for row, way in product(rows, WAYS):
        if row["method"] == "sgd":
            row["ours"][way]["mutual_information"] = []  # a point estimate has none
    return markdown(text, table_of(rows, NETWORK, METHOD, *in_three_ways(SCORES)))


def _picture(results: Results) -> Figure:
    """Areas by mutual information, and for SGD, which has none, by entropy."""

    def name(row: Results) -> str:
        return f"{METHODS[row['method']]}{', by entropy' * (row['method'] == 'sgd')}"

    def areas(row: Results, way: str) -> list[float | None]:
        scores: dict[str, list[float | None]] = row["ours"][way]
        return scores["entropy" if row["method"] == "sgd" else "mutual_information"]

    kinds = {label: lambda row, way=way: areas(row, way) for way, label in WAYS.items()}
    figure, axes = compared(results["rows"], kinds, "area under the ROC curve", 65, name)
    for panel in axes:
        panel.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    return figure


ITEM = Item("out-of-distribution", "Images of another kind", _template, _section, _picture)
