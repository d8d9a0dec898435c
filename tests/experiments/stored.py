"""Results in files and their rows, and a size for runs that take no time."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

from dpbnn.experiments import QUICK
from dpbnn.experiments.reproducing import FOLDER

TINY = replace(QUICK, name="tiny", records=512, test_records=40, epochs=1, hidden=(8,), draws=3)


def published(name):
    """The full size's results, as they stand in the docs."""
    return json.loads((Path(__file__).parents[2] / "docs" / FOLDER / f"{name}.json").read_text())


def of(rows, **values):
    (row,) = [row for row in rows if all(row[key] == value for key, value in values.items())]
    return row


def middle(values):
    return statistics.median(values)
