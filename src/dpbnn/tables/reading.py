"""A CSV or Parquet file as columns of text or numbers.

Types are never guessed from values: a CSV file is read as text throughout, and the schema says what becomes a number.
"""

import csv
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbnn.types import DpbnnError

__all__ = ["Table", "column_names", "read_table"]

PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Table:
    """Columns as Arrow arrays, all of one length; `path` for messages."""

    path: Path
    columns: dict[str, Any]
    rows: int


def column_names(path: str | Path) -> list[str]:
    """The names in a file's header, and nothing else of it."""
    file = _existing(path)
    if file.suffix in PARQUET:
        try:
            return list(_arrow("parquet").read_schema(file).names)
        except (OSError, ValueError) as error:
            raise DpbnnError(f"{file} cannot be read as a Parquet file.") from error
    try:
        with file.open("rb") as lines:
            first = lines.readline()
    except OSError as error:
        raise DpbnnError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        header = next(csv.reader([first.decode("utf-8-sig")], skipinitialspace=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DpbnnError(f"{file} must be a CSV file in UTF-8, got a first line that is not.") from error
    names = [name.strip() for name in header]
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


def read_table(path: str | Path, wanted: Sequence[str], names: Sequence[str] | None = None) -> Table:
    """The `wanted` columns of a file; `names` are those of all of its columns, where it has no header."""
    file = _existing(path)
    found = list(names) if names is not None and file.suffix not in PARQUET else column_names(file)
    lacking = [name for name in wanted if name not in found]
    if lacking:
        raise DpbnnError(f"{file} must have the column {lacking[0]!r}, got {len(found)} others.")
    try:
        table = _parquet(file, wanted) if file.suffix in PARQUET else _csv(file, wanted, found, names is not None)
    except (OSError, ValueError) as error:  # Arrow's errors are such
        raise DpbnnError(f"{file} cannot be read as a table: {_first_line(error)}.") from error
    columns = {name: table.column(name).combine_chunks() for name in wanted}
    return Table(file, columns, table.num_rows)


def _parquet(file: Path, wanted: Sequence[str]) -> Any:
    return _arrow("parquet").read_table(file, columns=list(wanted))


def _csv(file: Path, wanted: Sequence[str], names: list[str], without_header: bool) -> Any:
    reader, arrow = _arrow("csv"), _arrow("")
    text = {name: arrow.string() for name in names}
    return reader.read_csv(
        file,
        read_options=reader.ReadOptions(column_names=names, skip_rows=0 if without_header else 1),
        parse_options=reader.ParseOptions(newlines_in_values=True),
        convert_options=reader.ConvertOptions(
            column_types=text, include_columns=list(wanted), strings_can_be_null=False, quoted_strings_can_be_null=False
        ),
    )


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise DpbnnError(f"{file} must be a CSV or Parquet file, got no such file.")
    return file


def _arrow(part: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ModuleNotFoundError as error:
        raise DpbnnError("Tables need pyarrow, which is not installed: pip install 'dpbnn[tables]'.") from error


def _first_line(error: Exception) -> str:
    """Arrow quotes rows in its messages; what stands before is enough, and holds no values."""
    return str(error).splitlines()[0].split(":")[0] if str(error) else type(error).__name__
