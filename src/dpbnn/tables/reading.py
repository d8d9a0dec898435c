"""A CSV or Parquet file as columns of text or numbers.

Types are never guessed from values: a CSV file is read as text throughout, and the schema says what becomes a number.
"""

import csv
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbnn.errors import DpbnnError

__all__ = ["SEPARATORS", "Table", "column_names", "is_parquet", "number_of_columns", "read_table", "separator_of"]

PARQUET = (".parquet", ".pq")
SEPARATORS = (",", ";", "\t", "|")
MOST_NAMES = 20
"""Of a header that a message shows."""


@dataclass(eq=False)
class Table:
    """Columns as Arrow arrays, all of one length; `path` for messages, with `places` of rows that are not all."""

    path: Path
    columns: dict[str, Any]
    rows: int
    places: np.ndarray | None = None

    def taken(self, places: np.ndarray) -> "Table":
        """Some of the rows."""
        return Table(self.path, {name: own.take(places) for name, own in self.columns.items()}, len(places), places)

    def number_of(self, row: int) -> int:
        """As a person counts the rows of the file, from 1 and without the header."""
        return 1 + (row if self.places is None else int(self.places[row]))


def is_parquet(path: str | Path) -> bool:
    """By its name."""
    return Path(path).suffix.lower() in PARQUET


def number_of_columns(path: str | Path, separator: str) -> int:
    """Of the first line of a CSV file."""
    return len(_first_line(_existing(path), separator))


def _first_line(file: Path, separator: str) -> list[str]:
    try:
        with file.open("rb") as lines:
            first = lines.readline()
    except OSError as error:
        raise DpbnnError(f"{file} cannot be read: {error.strerror}.") from error
    if not first.strip():
        raise DpbnnError(f"{file} must hold a table, got a file that is empty or begins with an empty line.")
    try:
        return next(csv.reader([first.decode("utf-8-sig")], delimiter=separator, skipinitialspace=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DpbnnError(f"{file} must be a CSV file in UTF-8, got a first line that is not.") from error


def column_names(path: str | Path, separator: str = ",") -> list[str]:
    """The names in a file's header, and nothing else of it."""
    file = _existing(path)
    if is_parquet(file):
        try:
            return list(_arrow("parquet").read_schema(file).names)
        except (OSError, ValueError) as error:
            raise DpbnnError(f"{file} cannot be read as a Parquet file.") from error
    names = [name.strip() for name in _first_line(file, separator)]
    other = next((own for own in SEPARATORS if own != separator and own in names[0]), None)
    if len(names) == 1 and other is not None:
        raise DpbnnError(
            f"{file} must have columns parted by {separator!r}, got a header with {other!r} in it; dpbnn schema takes "
            f"--separator {other!r}."
        )
    if not names or len(set(names)) < len(names) or "" in names:
        raise DpbnnError(
            f"{file} must have a header with a different name for each column; for a file without one pass --no-header "
            "--names a,b,c."
        )
    if any(map(_is_number, names)):
        raise DpbnnError(
            f"{file} must have a header: its first line holds numbers, and looks like a row. Pass --no-header --names "
            "a,b,c; or rename columns that are called by numbers."
        )
    return names


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def read_table(
    path: str | Path, wanted: Sequence[str], names: Sequence[str] | None = None, separator: str = ","
) -> Table:
    """The `wanted` columns of a file; `names` are those of all of its columns, where it has no header."""
    file = _existing(path)
    if names is None:
        separator = separator_of(file, wanted, separator)
    found = list(names) if names is not None and not is_parquet(file) else column_names(file, separator)
    lacking = [name for name in wanted if name not in found]
    if lacking:
        shown = ", ".join(map(repr, found[:MOST_NAMES])) + ", ..." * (len(found) > MOST_NAMES)
        if len(lacking) == len(wanted):  # perhaps there is no header, and this is somebody's row
            shown = "a first line that names none of the columns (perhaps it is no header)"
        raise DpbnnError(f"{file} must have the column {lacking[0]!r}, got {shown}.")
    try:
        if is_parquet(file):
            table = _arrow("parquet").read_table(file, columns=list(wanted))
        else:
            table = _csv(file, wanted, found, names is not None, separator)
    except (OSError, ValueError) as error:  # Arrow's errors are such
        raise DpbnnError(f"{file} cannot be read as a table: {_reason(error, file, separator)}.") from None
    if not is_parquet(file):
        _check_lines(file, table.num_rows + (names is None))
    columns = {name: table.column(name).combine_chunks() for name in wanted}
    return Table(file, columns, table.num_rows)


def _check_lines(file: Path, expected: int) -> None:
    """Every line is a row: a quote that one record opens and does not close would swallow those of others.

    Arrow ends a row at a lone carriage return too, so that a record full of them could make up for the rows that it
    swallows: without any, as many rows as lines means that each is on one.
    """
    found = 0
    with file.open("rb") as lines:
        for line in lines:
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            found += bool(text)
            if b"\r" in text:
                raise DpbnnError(
                    f"{file} must end its lines with a line feed, got a lone carriage return; remove it, or save the "
                    "table as Parquet."
                )
    if found != expected:
        raise DpbnnError(
            f"{file} must have each row on a line of its own, got {expected} rows on {found} lines: a quote is not "
            "closed, or a value holds a line break. Clean such values, or save the table as Parquet."
        )


def separator_of(path: str | Path, wanted: Sequence[str], usual: str) -> str:
    """The one with which a header names all that is wanted: a file may be saved otherwise than the one trained on."""
    file = _existing(path)
    for separator in () if is_parquet(file) else (usual, *SEPARATORS):
        if set(wanted) <= {name.strip() for name in _first_line(file, separator)}:
            return separator
    return usual


def _csv(file: Path, wanted: Sequence[str], names: list[str], without_header: bool, separator: str) -> Any:
    reader, arrow = _arrow("csv"), _arrow("")
    text = {name: arrow.string() for name in names}
    return reader.read_csv(
        file,
        read_options=reader.ReadOptions(column_names=names, skip_rows=0 if without_header else 1),
        parse_options=reader.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=reader.ConvertOptions(
            column_types=text, include_columns=list(wanted), strings_can_be_null=False, quoted_strings_can_be_null=False
        ),
    )


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        found = "a folder" if file.is_dir() else "no such file"
        raise DpbnnError(f"{file} must be a CSV or Parquet file, got {found}.")
    return file


def _arrow(part: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ModuleNotFoundError as error:
        raise DpbnnError("Tables need pyarrow, which is not installed: pip install 'dpbnn[tables]'.") from error


def _reason(error: Exception, file: Path, separator: str) -> str:
    """Arrow quotes rows in its messages; here are the facts in them that are no values."""
    text = str(error)
    if "UTF8" in text or "UTF-8" in text:
        return "it is not in UTF-8; save it as such"
    if counts := re.search(r"Expected (\d+) columns, got (\d+)", text):
        line = _first_line_without(int(counts[1]), file, separator)
        return f"every row must have {counts[1]} columns, got one with {counts[2]}{line}"
    return text.splitlines()[0].split(":")[0] if text else type(error).__name__


def _first_line_without(columns: int, file: Path, separator: str) -> str:
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        rows = csv.reader(lines, delimiter=separator)
        return next((f" (line {rows.line_num})" for row in rows if row and len(row) != columns), "")
