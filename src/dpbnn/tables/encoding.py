"""Columns as numbers between -1 and 1, by what is public about them.

    number     clipped to its range and scaled; with scale "log" by log(1 + 1000 t), t from 0 to 1
    category   one number for each value, 1 where it is and 0 where not
    missing    a number is 0, the middle, or no category is 1; one more number says that it is missing

Nothing is learned from the rows, except for bounds that are bought.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute

from dpbnn.errors import DpbnnError
from dpbnn.privacy.queries.bounds import Bounds
from dpbnn.tables.reading import Table
from dpbnn.tables.schema import Category, Column, Number, Schema

__all__ = ["Encoded", "Encoding"]

DECADES = 1000.0
CURE_FOR_MISSING = (
    "leave the row out; before a fit, may_be_missing = true in the schema takes such rows, but for the target"
)
CURE_FOR_OTHERS = (
    "leave the row out, or correct it; before a fit, other = true in the schema takes such values, but for the target"
)


@dataclass(eq=False)
class Encoded:
    """Rows as a network takes them, and their targets where these were asked for.

    `unscaled` has the values of columns that have no bounds yet, by name, with NaN where they are missing. Until
    `Encoding.scale` fills them in, `x` holds NaN in their places, and `y` is None if the target is one of them.
    """

    x: np.ndarray
    y: np.ndarray | None
    unscaled: dict[str, np.ndarray]


@dataclass(frozen=True)
class Encoding:
    """How columns become numbers, by a schema; complete when it has bounds, public or bought, for all numbers."""

    schema: Schema

    @property
    def features(self) -> int:
        """How many numbers a row becomes."""
        return sum(_width(column) for column in self.schema.features.values())

    @property
    def without_bounds(self) -> list[str]:
        """Numbers that have no public range; the target last."""
        columns = {**self.schema.features, self.schema.target: self.schema.columns[self.schema.target]}
        return [name for name, column in columns.items() if isinstance(column, Number) and column.low is None]

    def with_bounds(self, bounds: Mapping[str, tuple[float, float]]) -> "Encoding":
        """The same with bounds that were bought."""
        columns = dict(self.schema.columns)
        for name, (low, high) in bounds.items():
            columns[name] = Number(low, high, may_be_missing=columns[name].may_be_missing)
        return Encoding(replace(self.schema, columns=columns))

    def encoded(self, table: Table, with_target: bool) -> Encoded:
        """Convert each column once; a value that the schema does not know is refused by column and row, not shown."""
        encoded = Encoded(np.full((table.rows, self.features), np.nan, dtype=np.float32), None, {})
        for name, place in self._places.items():
            column = self.schema.columns[name]
            if isinstance(column, Category):
                encoded.x[:, place] = 0.0
                encoded.x[np.arange(table.rows), place.start + categories(name, column, table, self.schema)] = 1.0
                continue
            values = numbers(name, column, table, self.schema)
            if column.may_be_missing:
                encoded.x[:, place.start + 1] = np.isnan(values)
            encoded.unscaled[name] = values
            self.scale(encoded)
        if with_target and self.schema.is_regression:
            encoded.unscaled[self.schema.target] = self.targets(table)
            self.scale(encoded)
        elif with_target:
            encoded.y = self.targets(table)
        return encoded

    def targets(self, table: Table) -> np.ndarray:
        """Classes by their place, or numbers in their unit."""
        name = self.schema.target
        target = self.schema.columns[name]
        if isinstance(target, Category):
            return categories(name, target, table, self.schema)
        return numbers(name, target, table, self.schema)

    def scale(self, encoded: Encoded) -> None:
        """Fill in the columns that have bounds in this encoding."""
        for name in encoded.unscaled.keys() - set(self.without_bounds):
            column = self.schema.columns[name]
            assert isinstance(column, Number)
            scaled = _scaled(column, encoded.unscaled.pop(name))
            if name == self.schema.target:
                encoded.y = scaled[:, None].astype(np.float32)
            else:
                encoded.x[:, self._places[name].start] = scaled

    @property
    def _places(self) -> dict[str, slice]:
        """Where in a row the numbers of each feature stand."""
        features = self.schema.features
        ends = accumulate(map(_width, features.values()))
        return {name: slice(end - _width(features[name]), end) for name, end in zip(features, ends, strict=True)}


def _width(column: Column) -> int:
    if isinstance(column, Category):
        return len(column.values) + column.other + column.may_be_missing
    return 1 + column.may_be_missing


def _scaled(column: Number, values: np.ndarray) -> np.ndarray:
    """From -1 to 1; what is missing becomes 0."""
    assert column.low is not None
    assert column.high is not None
    scaled = Bounds(np.array([column.low]), np.array([column.high])).scaled(values[:, None])[:, 0]
    if column.scale == "log":
        scaled = 2 * np.log1p(DECADES * (scaled + 1) / 2) / np.log1p(DECADES) - 1
    scaled[np.isnan(values)] = 0.0
    return scaled


def numbers(name: str, column: Number, table: Table, schema: Schema) -> np.ndarray:
    """The values of a column, NaN where they are missing."""
    given = table.columns[name]
    if arrow.types.is_string(given.type) or arrow.types.is_large_string(given.type):
        text = compute.utf8_trim_whitespace(given)
        is_missing = _is_missing(text, schema)
        filled = compute.if_else(arrow.array(is_missing), "0", text)
        try:
            values = compute.cast(filled, arrow.float64()).to_numpy(zero_copy_only=False)
        except arrow.ArrowInvalid:
            is_wrong = [not _is_number(item) for item in filled]
            _refuse_if(is_wrong, table, name, "a number such as 45.5, got something else")
            raise DpbnnError(f"{table.path}: column {name!r} must hold numbers, got something else.") from None
    else:
        try:
            values = compute.cast(given, arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
            raise DpbnnError(f"{table.path}: column {name!r} must hold numbers, got {given.type}.") from None
        is_missing = np.isnan(values)
    if not column.may_be_missing:
        _refuse_if(is_missing, table, name, f"a number, got a missing value; {CURE_FOR_MISSING}")
    _refuse_if(~np.isfinite(values) & ~is_missing, table, name, "a finite number")
    return np.where(is_missing, np.nan, values)


def categories(name: str, column: Category, table: Table, schema: Schema) -> np.ndarray:
    """The place of each row's value; behind the values: other, missing."""
    given = table.columns[name]
    try:
        text = compute.utf8_trim_whitespace(compute.cast(given, arrow.string()))
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        raise DpbnnError(f"{table.path}: column {name!r} must hold texts, got {given.type}.") from None
    known = compute.index_in(text, value_set=arrow.array(column.values, arrow.string()))
    places = compute.fill_null(known, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    is_missing = _is_missing(text, schema) & (places < 0)
    is_other = (places < 0) & ~is_missing
    if not column.may_be_missing:
        _refuse_if(is_missing, table, name, f"a category, got a missing value; {CURE_FOR_MISSING}")
    if not column.other:
        _refuse_if(is_other, table, name, f"one of the schema's values, got another; {CURE_FOR_OTHERS}")
    places[is_other] = len(column.values)
    places[is_missing] = len(column.values) + column.other
    return places


def _is_missing(text: Any, schema: Schema) -> np.ndarray:
    listed = compute.is_in(text, value_set=arrow.array(schema.missing, text.type))
    return compute.or_(listed, text.is_null()).to_numpy(zero_copy_only=False)


def _is_number(item: Any) -> bool:
    try:
        item.cast(arrow.float64())
    except arrow.ArrowInvalid:
        return False
    return True


def _refuse_if(wrong: Any, table: Table, name: str, expected: str) -> None:
    """Name the first row that is wrong, and never its value."""
    if np.any(wrong):
        row = table.number_of(int(np.argmax(wrong)))
        raise DpbnnError(f"{table.path}, row {row}, column {name!r}: expected {expected}.") from None
