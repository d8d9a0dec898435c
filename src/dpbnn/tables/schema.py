"""What is public about a table. It is written by a person who knows the columns, not read off the data.

    target = "income"
    rows = 32561

    [columns.age]
    type = "number"
    low = 17
    high = 90

    [columns.income]
    type = "category"
    values = ["<=50K", ">50K"]

A number without `low` and `high` has its bounds bought with some of the budget. Categories are always named: a value
that is in none of them is refused, unless `other = true` puts it in a category of its own.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbnn import _validate
from dpbnn.errors import DpbnnError

__all__ = [
    "SEPARATORS",
    "Category",
    "Column",
    "Number",
    "Schema",
    "as_values",
    "parse_schema",
    "read_schema",
    "template",
]

SEPARATORS = (",", ";", "\t", "|")

SCALES = ("linear", "log")
MISSING = ("", "NA", "NaN", "nan", "null", "?")
TABLE_KEYS = ("target", "rows", "person", "rows_per_person", "missing", "separator", "names", "columns")
COLUMN_KEYS = {
    "number": ("type", "low", "high", "scale", "may_be_missing"),
    "category": ("type", "values", "other", "may_be_missing"),
    "ignore": None,
}
"""The types of columns, each with the keys of its description; in one that is ignored anything may stand."""


@dataclass(frozen=True)
class Number:
    """A column of numbers, with its public range or none; "log" for ranges of several orders of magnitude."""

    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    may_be_missing: bool = False


@dataclass(frozen=True)
class Category:
    """A column of texts, with all that there can be."""

    values: tuple[str, ...]
    other: bool = False
    may_be_missing: bool = False


Column = Number | Category


@dataclass(frozen=True)
class Schema:
    """The columns that are used, in their order, and what else is public.

    Args:
        columns: by name, the target among them.
        target: what is predicted.
        rows: the public number of rows; None takes the number in the file for public.
        person: the column that says whose row it is.
        rows_per_person: how many rows of a person are used.
        missing: texts that stand for a missing value.
        separator: between the columns of a CSV file.
        names: of all columns of the file in their order, for a file without a header.
    """

    columns: Mapping[str, Column]
    target: str
    rows: int | None = None
    person: str | None = None
    rows_per_person: int = 1
    missing: tuple[str, ...] = MISSING
    separator: str = ","
    names: tuple[str, ...] | None = None

    @property
    def features(self) -> dict[str, Column]:
        """The columns but the target."""
        return {name: column for name, column in self.columns.items() if name != self.target}

    @property
    def classes(self) -> tuple[str, ...]:
        """The target's classes; none where it is a number."""
        target = self.columns[self.target]
        return target.values if isinstance(target, Category) else ()

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return isinstance(self.columns[self.target], Number)


def read_schema(path: str | Path, target: str | None = None) -> Schema:
    """The schema in a file; `target` overrides what it names."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise DpbnnError(f"schema {path} cannot be read ({error.strerror}); dpbnn schema writes one.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DpbnnError(f"schema {path} must be TOML: {error}.") from error
    return parse_schema(values | ({"target": target} if target else {}), f"schema {path}")


def parse_schema(values: Mapping[str, Any], where: str) -> Schema:
    """A schema from its values, checked as strictly as an argument."""
    _refuse_unknown(where, values, TABLE_KEYS)
    described = values.get("columns")
    if not isinstance(described, Mapping) or not described:
        raise DpbnnError(f"{where} must describe columns, each as [columns.NAME], got none.")
    parsed = {name: _column(f"{where}, column {name!r}", description) for name, description in described.items()}
    columns = {name: column for name, column in parsed.items() if column is not None}
    target = _validate.one_of(f"{where}: target", values.get("target"), columns)
    if len(columns) < 2:
        raise DpbnnError(f"{where} must use at least one column beside the target, got none.")
    _check_target(where, target, columns[target])
    rows, person, names = values.get("rows"), values.get("person") or None, values.get("names")
    if person is not None and person in columns:
        raise DpbnnError(f'{where}: person {person!r} must not be a column to learn from; give it type = "ignore".')
    return Schema(
        columns=columns,
        target=target,
        rows=_validate.whole_number(f"{where}: rows", rows) if rows else None,
        person=person,
        rows_per_person=_validate.whole_number(f"{where}: rows_per_person", values.get("rows_per_person", 1)),
        missing=_texts(f"{where}: missing", values.get("missing", list(MISSING))),
        separator=_validate.one_of(f"{where}: separator", values.get("separator", ","), SEPARATORS),
        names=None if names is None else _texts(f"{where}: names", names),
    )


def _check_target(where: str, name: str, target: Column) -> None:
    if target.may_be_missing or (isinstance(target, Category) and target.other):
        raise DpbnnError(
            f"{where}: the target {name!r} must not be missing or 'other'; take may_be_missing and other out of its "
            "description, and leave such rows out of the table."
        )
    if isinstance(target, Number) and target.scale == "log":
        raise DpbnnError(
            f'{where}: the target {name!r} must not have scale = "log", since predictions would not be in its unit; '
            "leave it out, or give the table a column with the logarithm as target."
        )


def _column(where: str, description: Any) -> Column | None:
    """None for a column that is ignored."""
    if not isinstance(description, Mapping):
        _validate.refuse(where, 'described as a table with type = "number", "category" or "ignore"', description)
    if description.get("type", "") == "":
        raise DpbnnError(f'{where}: type must be filled in: "number", "category" or "ignore".')
    kind = _validate.one_of(f"{where}: type", description["type"], COLUMN_KEYS)
    known = COLUMN_KEYS[kind]
    if known is None:
        return None
    _refuse_unknown(where, description, known)
    may_be_missing = _flag(where, "may_be_missing", description)
    if kind == "category":
        if "values" not in description:
            raise DpbnnError(f'{where}: values must name all that there can be, got none; values = ["a", "b"].')
        values = _texts(f"{where}: values", description["values"])
        if len(values) < 2 or len(set(values)) < len(values):
            raise DpbnnError(f"{where}: values must be at least two different texts, got {list(values)}.")
        return Category(values, _flag(where, "other", description), may_be_missing)
    scale = _validate.one_of(f"{where}: scale", description.get("scale", "linear"), SCALES)
    sides = [side for side in ("low", "high") if side in description]
    if not sides and scale == "log":
        raise DpbnnError(f'{where}: scale = "log" must have a public low and high.')
    if len(sides) == 1:
        raise DpbnnError(f"{where}: low and high must both be given, or none to have them bought, got one.")
    if not sides:
        return Number(may_be_missing=may_be_missing)
    low, high = (_validate.finite(f"{where}: {side}", description[side]) for side in sides)
    if not low < high:
        raise DpbnnError(f"{where}: low must be below high, got {low:g} and {high:g}; fill in the public range.")
    return Number(low, high, scale, may_be_missing)


def _refuse_unknown(where: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise DpbnnError(f"{where} has {unknown[0]!r}, which means nothing there; known are {', '.join(names)}.")


def as_values(schema: Schema) -> dict[str, Any]:
    """The values from which `parse_schema` makes this schema again."""
    columns: dict[str, dict[str, Any]] = {}
    for name, column in schema.columns.items():
        columns[name] = {"type": "category" if isinstance(column, Category) else "number"}
        columns[name] |= {key: value for key, value in vars(column).items() if value is not None}
        if isinstance(column, Category):
            columns[name]["values"] = list(column.values)
    return {
        "target": schema.target,
        "rows": schema.rows or 0,
        "person": schema.person or "",
        "rows_per_person": schema.rows_per_person,
        "missing": list(schema.missing),
        "separator": schema.separator,
        **({} if schema.names is None else {"names": list(schema.names)}),
        "columns": columns,
    }


def _texts(where: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        _validate.refuse(where, "a list of texts in quotes", given)
    return tuple(given)


def _flag(where: str, name: str, description: Mapping[str, Any]) -> bool:
    value = description.get(name, False)
    return value if isinstance(value, bool) else _validate.refuse(f"{where}: {name}", "true or false", value)


def template(file: str, names: Sequence[str], without_header: bool, separator: str = ",") -> str:
    """A schema to fill in: of the file it has the names of the columns, and nothing else."""
    head = f"""\
# What is public about {file}: to be filled in by somebody who knows the columns, without looking at the values.
# Everything here ends up in the release. What is read off the data instead would not be private.

target = ""            # the column to predict
rows = 0               # the public number of rows; 0 takes the number in the file for public
person = ""            # the column that says whose row it is; empty: every row is another person
rows_per_person = 1    # of one person so many rows are used, and further ones dropped
missing = {_list(MISSING)}   # texts that stand for a missing value
separator = {json.dumps(separator)}        # between the columns of a CSV file
"""
    if without_header:
        head += f"names = {_list(names)}   # of all columns, as the file has no header\n"
    blocks = [
        f"""
[columns.{json.dumps(name)}]
type = ""              # "number", "category" or "ignore" (names, identifiers, what must not be learned from)
# low = 0              # number: the public range. Without it, some of the budget buys one
# high = 100
# scale = "log"        # number: for ranges of several orders of magnitude
# values = ["a", "b"]  # category: all that there can be
# other = true         # category: anything else goes into a category of its own, instead of being refused
# may_be_missing = true
"""
        for name in names
    ]
    return head + "".join(blocks)


def _list(texts: Sequence[str]) -> str:
    return json.dumps(list(texts), ensure_ascii=False)
