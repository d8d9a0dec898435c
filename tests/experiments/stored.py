"""Results in files, and their rows."""

import json
import statistics
from pathlib import Path

from dpbnn.experiments.reproducing import FOLDER


def published(name):
    """The full size's results, as they stand in the docs."""
    return json.loads((Path(__file__).parents[2] / "docs" / FOLDER / f"{name}.json").read_text())


def of(rows, **values):
    (row,) = [row for row in rows if all(row[key] == value for key, value in values.items())]
    return row


def middle(values):
    return statistics.median(values)
