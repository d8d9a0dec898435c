"""Columns as numbers between -1 and 1, by what is public about them.

    number     clipped to its range and scaled; with scale "log" by log(1 + 1000 t), t from 0 to 1
    category   one number for each value, 1 where it is and 0 where not
    missing    a number is 0, the middle, or no category is 1; one more number says that it is missing

Nothing is learned from the rows, except for bounds that are bought.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpbnn.errors import DpbnnError
from dpbnn.privacy.queries.bounds import Bounds
from dpbnn.tables.reading import Table
from dpbnn.tables.schema import Category, Column, Number, Schema

__all__ = ["Encoded", "Encoding"]

DECADES = 1000.0
OF_MISSING = "leave the row out; before a fit, may_be_missing = true in the schema takes such rows, but for the target"
OF_OTHERS = (
    "leave the row out, or correct it; before a fit, other = true in the schema takes such values, but for the target"
)


@dataclass(frozen=True)
class Encoded:
    """Rows as a network takes them; targets where they were asked for."""

    x: np.ndarray
    y: np.ndarray | None


@dataclass(frozen=True)
class Encoding:
    """A schema whose numbers all have bounds, public or bought."""

    schema: Schema

    @property
    def features(self) -> int:
        """How many numbers a row becomes."""
        return sum(_width(column) for column in self.schema.features.values())

    @property
    def outputs(self) -> int:
        """Classes, or 1."""
        target = self.schema.columns[self.schema.target]
        return len(target.values) if isinstance(target, Category) else 1

    def encoded(self, table: Table, with_target: bool) -> Encoded:
        """All rows; a value that the schema does not know is refused by column and row, without being shown."""
        parts = [self._feature(name, column, table) for name, column in self.schema.features.items()]
        x = np.concatenate(parts, axis=1, dtype=np.float32)
        return Encoded(x, self._target(table) if with_target else None)

    def _feature(self, name: str, column: Column, table: Table) -> np.ndarray:
        if isinstance(column, Category):
            places = _places(name, column, table, self.schema.missing)
            return np.eye(_width(column) + 1, dtype=np.float32)[places][:, :-1]
        values, is_missing = numbers(name, column, table, self.schema.missing)
        scaled = _scaled(column, values)
        scaled[is_missing] = 0.0
        parts = [scaled, is_missing] if column.may_be_missing else [scaled]
        return np.stack(parts, axis=1, dtype=np.float32)

    def _target(self, table: Table) -> np.ndarray:
        name = self.schema.target
        target = self.schema.columns[name]
        if isinstance(target, Category):
            return _places(name, target, table, self.schema.missing).astype(np.int64)
        return _scaled(target, numbers(name, target, table, self.schema.missing)[0])[:, None].astype(np.float32)

    def with_bounds(self, found: Mapping[str, tuple[float, float]]) -> "Encoding":
        """With bounds that were bought."""
        columns = dict(self.schema.columns)
        for name, (low, high) in found.items():
            columns[name] = Number(low, high, may_be_missing=columns[name].may_be_missing)
        return Encoding(replace(self.schema, columns=columns))

    @property
    def without_bounds(self) -> list[str]:
        """Numbers of which no range is public; the target last."""
        columns = self.schema.features | {self.schema.target: self.schema.columns[self.schema.target]}
        return [name for name, own in columns.items() if isinstance(own, Number) and own.low is None]


def _width(column: Column) -> int:
    if isinstance(column, Category):
        return len(column.values) + column.other + column.may_be_missing
    return 1 + column.may_be_missing


def _scaled(column: Number, values: np.ndarray) -> np.ndarray:
    assert column.low is not None
    assert column.high is not None
    scaled = Bounds(np.array([column.low]), np.array([column.high])).scaled(values[:, None])[:, 0]
    if column.scale == "linear":
        return scaled
    return 2 * np.log1p(DECADES * (scaled + 1) / 2) / np.log1p(DECADES) - 1


def numbers(name: str, column: Number, table: Table, missing: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The values of a column, and where they are missing."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    own = table.columns[name]
    if arrow.types.is_string(own.type) or arrow.types.is_large_string(own.type):
        text = compute.utf8_trim_whitespace(own)
        is_missing = compute.is_in(text, value_set=arrow.array(missing, own.type)).to_numpy(zero_copy_only=False)
        is_missing = is_missing | text.is_null().to_numpy(zero_copy_only=False)
        filled = compute.if_else(arrow.array(is_missing), "0", text)
        try:
            values = compute.cast(filled, arrow.float64()).to_numpy(zero_copy_only=False)
        except arrow.ArrowInvalid:
            row = next(place for place, item in enumerate(filled) if not _is_number(item))
            _refuse(table, name, row, "a number such as 45.5, got something else")
    else:
        try:
            values = compute.cast(own, arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
            raise DpbnnError(f"{table.path}: column {name!r} must hold numbers, got {own.type}.") from None
        is_missing = np.isnan(values)
    if is_missing.any() and not column.may_be_missing:
        _refuse(table, name, _first(is_missing), f"a number, got a missing value; {OF_MISSING}")
    if not np.isfinite(values[~is_missing]).all():
        _refuse(table, name, _first(~np.isfinite(values) & ~is_missing), "a finite number")
    return np.where(is_missing, 0.0, values), is_missing


def _places(name: str, column: Category, table: Table, missing: tuple[str, ...]) -> np.ndarray:
    """The place of each row's value; behind the values: other, missing."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    own = table.columns[name]
    try:
        text = compute.utf8_trim_whitespace(compute.cast(own, arrow.string()))
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        raise DpbnnError(f"{table.path}: column {name!r} must hold texts, got {own.type}.") from None
    found = compute.index_in(text, value_set=arrow.array(column.values, arrow.string()))
    places = found.to_numpy(zero_copy_only=False)
    unknown = np.isnan(places) if places.dtype.kind == "f" else np.zeros(len(places), dtype=bool)
    is_missing = compute.is_in(text, value_set=arrow.array(missing, arrow.string())).to_numpy(zero_copy_only=False)
    is_missing = (is_missing | text.is_null().to_numpy(zero_copy_only=False)) & unknown
    places = np.where(unknown, 0, places).astype(np.int64)
    others = unknown & ~is_missing
    if is_missing.any() and not column.may_be_missing:
        _refuse(table, name, _first(is_missing), f"a category, got a missing value; {OF_MISSING}")
    if others.any() and not column.other:
        _refuse(table, name, _first(others), f"one of the schema's values, got another; {OF_OTHERS}")
    places[others] = len(column.values)
    places[is_missing] = len(column.values) + column.other
    return places


def _is_number(item: Any) -> bool:
    import pyarrow as arrow

    try:
        item.cast(arrow.float64())
    except arrow.ArrowInvalid:
        return False
    return True


def _first(where: Any) -> int:
    return int(np.argmax(np.asarray(where)))


def _refuse(table: Table, name: str, row: int, expected: str) -> Any:
    raise DpbnnError(f"{table.path}, row {table.number_of(row)}, column {name!r}: expected {expected}.") from None
