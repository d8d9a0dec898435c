"""A CSV or Parquet file as columns of text or numbers.

Types are never guessed from values: a CSV file is read as text throughout, and the schema says what becomes a number.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbnn.errors import DpbnnError
from dpbnn.tables.schema import SEPARATORS

try:
    import pyarrow as arrow
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as parquet
except ModuleNotFoundError as error:
    raise DpbnnError("Tables need pyarrow, which is not installed: pip install 'dpbnn[tables]'.") from error

__all__ = ["Table", "column_names", "is_parquet", "number_of_columns", "read_table", "separator_of"]

MOST_NAMES = 20
"""Of a header that a message shows."""


@dataclass(eq=False)
class Table:
    """Columns of a file as Arrow arrays; `places` has the rows' places in the file if some are left out."""

    path: Path
    columns: dict[str, Any]
    rows: int
    places: np.ndarray | None = None

    def taken(self, places: np.ndarray) -> "Table":
        """The table of these rows alone."""
        columns = {name: column.take(places) for name, column in self.columns.items()}
        return Table(self.path, columns, len(places), places)

    def number_of(self, row: int) -> int:
        """A row's number as a person counts the rows of the file: from 1, without the header."""
        return 1 + (row if self.places is None else int(self.places[row]))


def is_parquet(path: str | Path) -> bool:
    """Whether a file's name says so."""
    return Path(path).suffix.lower() in (".parquet", ".pq")


def number_of_columns(path: str | Path, separator: str) -> int:
    """How many columns the first line of a CSV file has."""
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
            return list(parquet.read_schema(file).names)
        except (OSError, ValueError) as error:
            raise DpbnnError(f"{file} cannot be read as a Parquet file.") from error
    names = [name.strip() for name in _first_line(file, separator)]
    other = next((known for known in SEPARATORS if known != separator and known in names[0]), None)
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
    path: str | Path,
    wanted: Sequence[str],
    names: Sequence[str] | None = None,
    separator: str = ",",
    with_others: bool = False,
) -> Table:
    """The `wanted` columns of a file, or all; `names` are those of all its columns, if it has no header."""
    file, has_header = _existing(path), names is None
    if names is None:
        separator = separator_of(file, wanted, separator)
    if names is None or is_parquet(file):
        names = column_names(file, separator)
    lacking = [name for name in wanted if name not in names]
    if lacking:
        shown = ", ".join(map(repr, names[:MOST_NAMES])) + ", ..." * (len(names) > MOST_NAMES)
        if len(lacking) == len(wanted):  # perhaps there is no header, and this is somebody's row
            shown = "a first line that names none of the columns (perhaps it is no header)"
        raise DpbnnError(f"{file} must have the column {lacking[0]!r}, got {shown}.")
    wanted = names if with_others else wanted
    try:
        if is_parquet(file):
            table = parquet.read_table(file, columns=list(wanted))
        else:
            table = _read_csv(file, wanted, names, has_header, separator)
    except (OSError, ValueError) as error:  # Arrow's errors are of these kinds
        raise DpbnnError(f"{file} cannot be read as a table: {_reason(error, file, separator)}.") from None
    if not is_parquet(file):
        _check_lines(file, table.num_rows + has_header)
    columns = {name: table.column(name).combine_chunks() for name in wanted}
    return Table(file, columns, table.num_rows)


def _check_lines(file: Path, expected: int) -> None:
    """Every line is a row: a quote that one record opens and does not close would swallow those of others.

    Arrow ends a row at a lone carriage return too, so that a record full of them could make up for the rows that it
    swallows. Where there are none, as many rows as lines means that each row is on one line.
    """
    count = 0
    with file.open("rb") as lines:
        for line in lines:
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            count += bool(text)
            if b"\r" in text:
                raise DpbnnError(
                    f"{file} must end its lines with a line feed, got a lone carriage return; remove it, or save the "
                    "table as Parquet."
                )
    if count != expected:
        raise DpbnnError(
            f"{file} must have each row on a line of its own, got {expected} rows on {count} lines: a quote is not "
            "closed, or a value holds a line break. Clean such values, or save the table as Parquet."
        )


def separator_of(path: str | Path, wanted: Sequence[str], usual: str) -> str:
    """The separator with which the header names all that is wanted: new rows may be saved otherwise than the old."""
    file = _existing(path)
    for separator in () if is_parquet(file) else (usual, *SEPARATORS):
        if set(wanted) <= {name.strip() for name in _first_line(file, separator)}:
            return separator
    return usual


def _read_csv(file: Path, wanted: Sequence[str], names: Sequence[str], has_header: bool, separator: str) -> Any:
    return arrow_csv.read_csv(
        file,
        read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=int(has_header)),
        parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.string()),
            include_columns=list(wanted),
            strings_can_be_null=False,
            quoted_strings_can_be_null=False,
        ),
    )


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        kind = "a folder" if file.is_dir() else "no such file"
        raise DpbnnError(f"{file} must be a CSV or Parquet file, got {kind}.")
    return file


def _reason(error: Exception, file: Path, separator: str) -> str:
    """The facts in Arrow's message that are no values: it quotes rows."""
    text = str(error)
    if "UTF8" in text or "UTF-8" in text:
        return "it is not in UTF-8; save it as such"
    if counts := re.search(r"Expected (\d+) columns, got (\d+)", text):
        with file.open(encoding="utf-8", errors="replace", newline="") as lines:
            rows = csv.reader(lines, delimiter=separator)
            line = next((f" (line {rows.line_num})" for row in rows if row and len(row) != int(counts[1])), "")
        return f"every row must have {counts[1]} columns, got one with {counts[2]}{line}"
    return text.splitlines()[0].split(":")[0] if text else type(error).__name__
