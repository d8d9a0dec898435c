"""Beyond the paper: the accuracy and calibration tables for Fashion-MNIST."""

from dpbnn.experiments.item import Item, Results, Size
from dpbnn.experiments.pictures import Figure, compared
from dpbnn.experiments.settings import METHODS
from dpbnn.experiments.training import rows_in_three_ways
from dpbnn.experiments.words import METHOD, NETWORK, WAYS, in_three_ways, markdown, table_of

__all__ = ["ITEM"]

FIGURES = {"accuracy": "accuracy", "expected_calibration_error": "ECE"}
PRIORS = dict.fromkeys(METHODS, "Gaussian") | {"sgd": "none"}
"""The settings of MNIST, without any tuning on garments."""


def _template(size: Size) -> Results:
    """A row for each network and method, in three ways."""
    return rows_in_three_ways("fashion-mnist", PRIORS, "figures", FIGURES, size)


def _section(results: Results) -> str:
    text = "The same networks, settings and budget as for MNIST; nothing was tuned on garments."
    return markdown(text, table_of(results["rows"], NETWORK, METHOD, *in_three_ways(FIGURES)))


def _picture(results: Results) -> Figure:
    kinds = {label: lambda row, way=way: row["ours"][way]["accuracy"] for way, label in WAYS.items()}
    return compared(results["rows"], kinds, "test accuracy", 60, METHOD[1])[0]


ITEM = Item("fashion", "Fashion-MNIST", _template, _section, _picture)
