"""Cells that train through an estimator or the command line: rows have persons, and one of them has far too many."""

import csv
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpbnn
from dpbnn.cli import main as cli
from dpbnn.sklearn import DPBayesClassifier, DPBayesRegressor
from tests.together.combinations import makers
from tests.together.combinations.networks import TOKENS, WIDTH
from tests.together.combinations.subjects import Records, Subject

EPSILON, DELTA = 20.0, 1e-4
CLASSES = (0, 1, 2)
RANGES = {"floats": (-3.0, 3.0), "whole": (0.0, TOKENS - 1.0)}
TARGET_RANGE = (-2.0, 2.0)
NAMES = [f"c{column}" for column in range(WIDTH)]


def is_regression(subject: Subject) -> bool:
    """Whether the targets are numbers."""
    return subject.cell["likelihood"] != "Categorical"


def _buys(subject: Subject) -> bool:
    return subject.cell["entry"].endswith("bought bounds")


def people_of(subject: Subject, records: Records) -> list[str]:
    """One row for everybody but her, whose rows are the last ones."""
    others = len(records.x) - records.hers
    return [f"p{row}" for row in range(others)] + ["she"] * records.hers


def settings_of(subject: Subject) -> dict[str, Any]:
    """What is given to estimators and to the command line alike."""
    size = subject.size
    return {
        "method": makers.method_forms()[subject.cell["method"]],
        "epsilon": EPSILON,
        "delta": DELTA,
        "batch_size": size.batch,
        "epochs": size.steps * size.batch / size.declared,
        "clip_norm": 0.5,
        "learning_rate": 0.5,
    }


def fit_estimator(subject: Subject, records: Records, checkpoint: Path | None) -> Any:
    """A fitted estimator."""
    further: dict[str, Any] = {} if _buys(subject) else {"bounds": RANGES[subject.cell["numbers"]]}
    if subject.has_dropout:
        further["dropout"] = 0.4
    further |= {"hidden": [5], "dataset_size": subject.size.declared, "max_records_per_person": subject.rows}
    further |= {"checkpoint": checkpoint, "random_state": 3}
    x, y = records.x.numpy(), records.y.numpy()
    if is_regression(subject):
        further |= {} if _buys(subject) else {"target_bounds": TARGET_RANGE}
        estimator, y = DPBayesRegressor(**settings_of(subject), **further), y[:, 0]
    else:
        estimator = DPBayesClassifier(**settings_of(subject), **further, classes=CLASSES)
    return estimator.fit(x, y, np.array(people_of(subject, records)))


def write_table(subject: Subject, records: Records, folder: Path) -> None:
    """The records as a file, and a schema beside it."""
    x, y = records.x.numpy(), records.y.numpy()
    targets = y[:, 0] if is_regression(subject) else [f"k{label}" for label in y]
    with (folder / "data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*NAMES, "target", "person"])
        for row, target, person in zip(x, targets, people_of(subject, records), strict=True):
            rows.writerow([*row, target, person])
    (folder / "schema.toml").write_text(_schema(subject))


def _schema(subject: Subject) -> str:
    def number(name: str, low: float, high: float) -> str:
        bounds = "" if _buys(subject) else f"low = {low}\nhigh = {high}\n"
        return f'[columns.{name}]\ntype = "number"\n{bounds}'

    head = f'target = "target"\nrows = {subject.size.declared}\nperson = "person"\nrows_per_person = {subject.rows}\n'
    columns = "".join(number(name, *RANGES[subject.cell["numbers"]]) for name in NAMES)
    if is_regression(subject):
        return head + columns + number("target", *TARGET_RANGE)
    return f'{head}{columns}[columns.target]\ntype = "category"\nvalues = {[f"k{label}" for label in CLASSES]}\n'


def fit_by_command(subject: Subject, records: Records, folder: Path, *further: str) -> dpbnn.Release:
    """What `dpbnn fit` leaves in the folder."""
    write_table(subject, records, folder)
    options = {name.replace("_", "-"): value for name, value in settings_of(subject).items()}
    options |= {"schema": "schema.toml", "out": "model", "hidden": "5", "seed": 3}
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["dpbnn", "fit", "data.csv", *given, *further])
        with suppress(SystemExit):
            cli.main()
        return dpbnn.load("model")
