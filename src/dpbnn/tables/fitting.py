"""A private model from a file: bounds, settings, training, and one folder with all that is released.

    FOLDER/release.json, posterior.safetensors   what `dpbnn.load` reads
    FOLDER/table.json                            the schema, with the bounds that were bought
    FOLDER/schema.toml                           the schema as it was given
    FOLDER/card.md, log.txt                      in words: the promise, and what was chosen and why

While a run is unfinished, FOLDER.unfinished holds its state, which is as secret as the data, and is gone at the end.

Guarantees:
    FOLDER is there whole or not at all.
    What was bought or trained is not bought or trained again when a run is resumed.
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbnn import _validate, lint
from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import sync_files, sync_folder
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.queries.bounds import BoundsPurchase
from dpbnn.privacy.queries.contributions import kept_rows
from dpbnn.tables.encoding import Encoded, Encoding
from dpbnn.tables.model import TableModel, load_table_model, log_of
from dpbnn.tables.reading import Table, column_names, read_table, separator_of
from dpbnn.tables.schema import Schema, as_values
from dpbnn.tables.settings import Chosen, Facts
from dpbnn.tables.terms import LEDGER, RELEASE, TRAINING, FitFolder, Terms, circumstances, claimed, terms_for
from dpbnn.tables.training import train
from dpbnn.training.prepare import refuse_several_processes

__all__ = ["Order", "findings_before", "fit_table"]

TERMS = "terms.json"
"""What a run was begun with, in its folder."""


@dataclass(frozen=True)
class Order:
    """A fit that is asked for.

    Args:
        data: the file.
        schema: what is public about it.
        out: the folder to write.
        epsilon: the budget.
        delta: None takes 1e-5, or with many rows the largest power of ten below a tenth of one over their number.
        method: of `dpbnn.methods.METHODS`.
        given: settings that are not to be chosen, by name.
        seed: for the first weights; never for sampling or noise.
        resume: continue an unfinished run.
        take_over: continue also a run of another host, whose worker is gone or must stop.
        progress: whether to show a bar.
    """

    data: Path
    schema: Schema
    out: Path
    epsilon: float
    delta: float | None = None
    method: str = "sgld"
    given: Mapping[str, Any] | None = None
    seed: int | None = None
    resume: bool = False
    take_over: bool = False
    progress: bool = True

    @property
    def unfinished(self) -> Path:
        """The folder of the run's state, until it is done."""
        return self.out.with_name(f"{self.out.name}.unfinished")

    @property
    def finished(self) -> Path:
        """The release, whole, before it is moved to `out`: from then on nothing is computed again."""
        return self.unfinished / RELEASE


def fit_table(order: Order, schema_text: str) -> tuple[TableModel, Chosen]:
    """Train as ordered, and write the folder."""
    refuse_several_processes()
    _refuse_what_is_there(order)
    table = _rows_of(order)
    terms = _terms(order, table.rows)
    if order.seed is not None:
        _validate.whole_number("--seed", order.seed, at_least=0)
    rows = Encoding(order.schema).encoded(table, with_target=True)  # bad rows are refused before anything is bought
    del table  # training needs the memory
    _begin(order, terms.chosen)
    with claimed(order.unfinished, order.take_over) as folder:
        if order.out.exists():
            raise DpbnnError(
                f"{order.unfinished} was worked on by another process, which has just written {order.out}."
            )
        if not order.finished.exists():
            _train(order, rows, terms, folder, schema_text)
        return _hand_over(order, folder), terms.chosen


def _train(order: Order, rows: Encoded, terms: Terms, folder: FitFolder, schema_text: str) -> None:
    schema, encoding = order.schema, Encoding(order.schema)
    ledger = terms.ledger(folder.ledger)
    if terms.bounds is not None:
        encoding = _with_bought_bounds(encoding, rows, terms.bounds, ledger)
        encoding.scale(rows)
    assert rows.y is not None
    findings = _findings(order, terms.chosen.plan)
    draft = train(
        rows.x, rows.y, terms, ledger, seed=order.seed, folder=folder, progress=order.progress, findings=findings
    )
    counted = None if schema.rows else "the number of rows that are used is public: it was counted in the file"
    release = draft.release(
        circumstances(["what the schema says is public, and was not read off the data"], counted),
        {"predicts": schema.target, "from_columns": list(schema.features)},
    )
    _write(order, TableModel(release, encoding, tuple(Encoding(schema).without_bounds)), terms.chosen, schema_text)


def findings_before(order: Order) -> list[lint.Finding]:
    """What is wrong or risky about an order; of the rows only their number is looked at."""
    return _findings(order, _terms(order, _rows_of(order).rows).chosen.plan)


def _findings(order: Order, plan: PrivacyPlan) -> list[lint.Finding]:
    schema, names = order.schema, order.schema.names
    if names is None:
        names = tuple(column_names(order.data, separator_of(order.data, list(schema.columns), schema.separator)))
    unused = () if schema.person else [name for name in names if name not in schema.columns]
    return lint.inspect(lint.Subject(plan, unused=unused))


def _hand_over(order: Order, folder: FitFolder) -> TableModel:
    """Move the release out, after all from which another one could be made is deleted."""
    folder.check()
    try:
        for name in (TRAINING, LEDGER, TERMS):
            path = order.unfinished / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        order.finished.replace(order.out)
        folder.remove()
    except OSError as error:
        raise DpbnnError(f"The release cannot be moved from {order.finished} to {order.out}: {error}.") from error
    return load_table_model(order.out)


def _refuse_what_is_there(order: Order) -> None:
    if order.out.exists():
        raise DpbnnError(f"--out must be a new folder, got {order.out}, which exists; choose another.")
    if order.unfinished.exists() and not order.resume:
        raise DpbnnError(
            f"{order.unfinished} holds an unfinished run; continue it with --resume, or delete it (what it has "
            "released stays spent)."
        )
    if order.take_over and not order.resume:
        raise DpbnnError("--take-over must come with --resume: it continues an unfinished run of another host.")
    if order.resume and not order.unfinished.exists():
        raise DpbnnError(f"--resume must find an unfinished run in {order.unfinished}, got none; leave it out.")


def _rows_of(order: Order) -> Table:
    """The rows that are used: at most `rows_per_person` of each person."""
    schema = order.schema
    names = [*schema.columns, *([schema.person] if schema.person else [])]
    table = read_table(order.data, names, schema.names, schema.separator)
    if schema.person is None:
        return table
    texts = (name.strip() if isinstance(name, str) else name for name in table.columns[schema.person].to_pylist())
    people = [None if text in schema.missing else text for text in texts]
    if None in people:
        row = table.number_of(people.index(None))
        raise DpbnnError(
            f"{table.path}, row {row}, column {schema.person!r}: expected the name of a person, got a missing value; "
            "leave the row out."
        )
    return table.taken(kept_rows(people, schema.rows_per_person))


def _terms(order: Order, rows: int) -> Terms:
    schema = order.schema
    size = schema.rows or rows
    if size < 2:
        raise DpbnnError(f"{order.data} must have at least 2 rows, got {size}.")
    facts = Facts(
        rows=size,
        columns=len(schema.features),
        classes=len(schema.classes) or None,
        epsilon=order.epsilon,
        delta=min(1e-5, 10.0 ** -(len(str(size)) + 1)) if order.delta is None else order.delta,
        method=order.method,
        max_records_per_person=schema.rows_per_person,
    )
    names = Encoding(schema).without_bounds
    return terms_for(
        facts,
        order.given,
        [f"column {name!r}" for name in names],
        buys_target=schema.target in names,
        remedy=f"low and high in the schema for {', '.join(map(repr, names))}",
    )


def _begin(order: Order, chosen: Chosen) -> None:
    """Make the folder of a run; one that is resumed must be of the same terms, and not handed over already."""
    plan = json.loads(chosen.plan.to_json())
    terms = {"plan": plan, "purchases": chosen.purchases, "schema": as_values(order.schema), "method": chosen.method}
    file = order.unfinished / TERMS
    if not order.unfinished.exists():
        try:
            fresh = order.unfinished.with_name(f"{order.unfinished.name}.{os.getpid()}")
            fresh.mkdir(mode=0o700, parents=True)
            (fresh / file.name).write_text(json.dumps(terms))
            sync_files(fresh)
            fresh.rename(order.unfinished)
            sync_folder(order.unfinished.parent)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise DpbnnError(f"--out must be where folders can be made, got {order.out} ({error.strerror}).") from error
        return
    if order.finished.exists() and not file.is_file():
        return
    if not file.is_file():
        raise DpbnnError(f"{order.unfinished} holds no run any more, as its release has been handed over; delete it.")
    begun_with = file.read_text()
    if begun_with != json.dumps(terms):
        raise DpbnnError(
            f"{order.unfinished} belongs to a run with {_difference(begun_with, terms)}; resume it with that, or "
            "delete it (what it has released stays spent)."
        )


def _difference(begun_with: str, terms: Mapping[str, Any]) -> str:
    """What has changed since a run began."""
    with suppress(ValueError, KeyError, TypeError):  # a damaged file
        before = json.loads(begun_with)
        if before["schema"] != terms["schema"]:
            return "another schema"
        if before["plan"]["dataset_size"] != terms["plan"]["dataset_size"]:
            return "another table, of more or fewer rows"
    return "other settings"


def _with_bought_bounds(encoding: Encoding, rows: Encoded, bought: BoundsPurchase, ledger: Ledger) -> Encoding:
    names = encoding.without_bounds
    bounds = bought.bounds_of(np.stack([rows.unscaled[name] for name in names], axis=1), ledger)
    pairs = zip(bounds.low.tolist(), bounds.high.tolist(), strict=True)
    return encoding.with_bounds(dict(zip(names, pairs, strict=True)))


def _write(order: Order, model: TableModel, chosen: Chosen, schema_text: str) -> None:
    fresh = order.unfinished / "release.new"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        model.release.save(fresh)
        values = {"schema": as_values(model.encoding.schema), "bought": model.bought}
        (fresh / "table.json").write_text(json.dumps(values, indent=1))
        (fresh / "schema.toml").write_text(schema_text)
        (fresh / "log.txt").write_text(log_of(model, chosen))
        sync_files(fresh)  # before anything is deleted from which it could be made again
        fresh.replace(order.finished)
        sync_folder(order.unfinished)
    except OSError as error:
        raise DpbnnError(f"The release cannot be written to {fresh}: {error}; --resume tries again.") from error
