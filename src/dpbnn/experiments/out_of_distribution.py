"""Beyond the paper: does uncertainty tell images of another kind apart? MNIST against Fashion-MNIST."""

from itertools import product

from dpbnn.experiments.item import Item, Results, Size
from dpbnn.experiments.pictures import Figure, compared
from dpbnn.experiments.settings import METHODS
from dpbnn.experiments.training import rows_in_three_ways
from dpbnn.experiments.words import METHOD, NETWORK, WAYS, markdown, spread, table_of

__all__ = ["ITEM"]

SCORES = {"mutual_information": "mutual information", "entropy": "entropy"}
PRIORS = dict.fromkeys(METHODS, "Gaussian")


def _template(size: Size) -> Results:
    """The area under the ROC curve by each score: four methods on two networks, in three ways."""
    return rows_in_three_ways("mnist", PRIORS, "foreign", SCORES, size)


def _section(results: Results) -> str:
    def area(row: Results, way: str, score: str) -> str:
        is_undefined = row["method"] == "sgd" and score == "mutual_information"
        return "-" if is_undefined else spread(row["ours"][way][score])

    text = (
        "Trained on MNIST, asked about test images of MNIST and of Fashion-MNIST (standardized by MNIST's constants). "
        "The area under the ROC curve is the share of pairs in which the garment gets the higher score; 0.5 is chance. "
        "A point estimate has no mutual information."
    )
    columns = [
        (f"{WAYS[way]}, {SCORES[score]}", lambda row, way=way, score=score: area(row, way, score))
        for way, score in product(WAYS, SCORES)
    ]
    return markdown(text, table_of(results["rows"], NETWORK, METHOD, *columns))


def _picture(results: Results) -> Figure:
    """By mutual information; by entropy for the point estimate."""

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
