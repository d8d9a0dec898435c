"""`dpbnn schema`: what is public about a table, as a file to fill in."""

from pathlib import Path
from typing import Annotated

import typer

from dpbnn.cli.options import AsJson, refuse, show, unused
from dpbnn.errors import DpbnnError

__all__ = ["schema"]


def schema(
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file.")],
    out: Annotated[str, typer.Option(help="The file to write.")] = "schema.toml",
    no_header: Annotated[bool, typer.Option("--no-header", help="The file has no line of names.")] = False,
    names: Annotated[str, typer.Option(help="With --no-header: the columns' names, with commas between them.")] = "",
    separator: Annotated[str, typer.Option(help="Between the columns of a CSV file: , ; | or tab.")] = ",",
    as_json: AsJson = False,
) -> None:
    """Write a schema to fill in: what is public about a table. Nothing but the header is read."""
    from dpbnn.tables.reading import column_names
    from dpbnn.tables.schema import SEPARATORS, template

    between = {"tab": "\t", "\\t": "\t"}.get(separator, separator)
    if between not in SEPARATORS:
        refuse("--separator", f"one of {', '.join(map(repr, SEPARATORS))}", repr(between))
    if no_header != bool(names):
        raise DpbnnError("--no-header and --names must be given together, got one of them; --names a,b,c.")
    if not Path(data).is_file():
        raise DpbnnError(f"{data} must be a CSV or Parquet file, got no such file.")
    columns = [name.strip() for name in names.split(",")] if no_header else column_names(data, between)
    if len(set(columns)) < len(columns) or "" in columns:
        refuse("--names", "different for each column", names)
    target = unused(out)
    try:
        target.write_text(template(Path(data).name, columns, no_header, between))
    except OSError as error:
        raise DpbnnError(f"--out cannot be written: {target} ({error.strerror}).") from error
    where = "" if no_header else f" The first line of {data} was taken for their names: look whether it is."
    done = f"{target} names {len(columns)} columns.{where} Fill in what is public about each, then run dpbnn fit."
    show(as_json, {"schema": str(target), "columns": columns}, done)
