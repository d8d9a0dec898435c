"""The commands for tables: `dpbnn schema`, `fit`, `predict` and `evaluate`. The command line registers them."""

import json
import sys
import warnings
from typing import Annotated, Any

import typer

__all__ = ["evaluate", "fit", "predict", "schema"]


def schema(
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file.")],
    out: Annotated[str, typer.Option(help="The file to write.")] = "schema.toml",
    no_header: Annotated[bool, typer.Option("--no-header", help="The file has no line of names.")] = False,
    names: Annotated[str, typer.Option(help="The names of its columns then, with commas between them.")] = "",
    separator: Annotated[str, typer.Option(help="Between the columns of a CSV file: , ; | or tab.")] = ",",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Write a schema to fill in: what is public about a table. Nothing but the header is read."""
    from pathlib import Path

    from dpbnn import _validate
    from dpbnn.errors import DpbnnError
    from dpbnn.tables.reading import SEPARATORS, column_names
    from dpbnn.tables.schema import template

    between = _validate.one_of("--separator", {"tab": "\t", "\\t": "\t"}.get(separator, separator), SEPARATORS)
    if no_header != bool(names):
        raise DpbnnError("--no-header and --names must be given together, got one of them; --names a,b,c.")
    if not Path(data).is_file():
        raise DpbnnError(f"{data} must be a CSV or Parquet file, got no such file.")
    found = [name.strip() for name in names.split(",")] if no_header else column_names(data, between)
    if len(set(found)) < len(found) or "" in found:
        raise DpbnnError(f"--names must be different for each column, got {names}.")
    target = Path(out)
    if target.exists():
        raise DpbnnError(f"--out must be a new file, got {target}, which exists; choose another name.")
    try:
        target.write_text(template(Path(data).name, found, no_header, between))
    except OSError as error:
        raise DpbnnError(f"--out cannot be written: {target} ({error.strerror}).") from error
    if as_json:
        typer.echo(json.dumps({"schema": str(target), "columns": found}, indent=2))
    else:
        where = "" if no_header else f" The first line of {data} was taken for their names: look whether it is."
        typer.echo(
            f"{target} names {len(found)} columns.{where} Fill in what is public about each, then run dpbnn fit."
        )


def fit(
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file with private rows.")],
    schema: Annotated[str, typer.Option(help="What is public about it; dpbnn schema writes one to fill in.")],
    out: Annotated[str, typer.Option(help="The folder to write; a new one.")],
    epsilon: Annotated[float, typer.Option(help="The budget of everything that is released.")],
    target: Annotated[str, typer.Option(help="The column to predict, if not the schema's.")] = "",
    delta: Annotated[float | None, typer.Option(help="If not given: 1e-5, or less where there are many rows.")] = None,
    method: Annotated[str, typer.Option(help="sgld, bbp, mc_dropout or sgd.")] = "sgld",
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected rows in a step.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound on the norm of a row's gradient.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of a mean gradient.")] = None,
    prior_scale: Annotated[float | None, typer.Option(help="Of the Gaussian prior.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Widths of hidden layers, such as 64,64; none for none.")] = None,
    seed: Annotated[int | None, typer.Option(help="For the first weights; never for sampling or noise.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="With --resume: also one of another host, whose worker is gone.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Train a private model on a table. What is not given is chosen from public facts, and shown with the reason.

    An interrupted run keeps its state in OUT.unfinished, which is as secret as the data; --resume goes on from there
    without spending twice.
    """
    from pathlib import Path

    from dpbnn.errors import DpbnnWarning
    from dpbnn.tables.fitting import Order, fit_table
    from dpbnn.tables.model import settings_of
    from dpbnn.tables.schema import read_schema

    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "clip_norm": clip_norm,
        "learning_rate": learning_rate,
        "prior_scale": prior_scale,
        "hidden": _widths(hidden),
    }
    order = Order(
        data=Path(data),
        schema=read_schema(schema, target or None),
        out=Path(out),
        epsilon=epsilon,
        delta=delta,
        method=method,
        given=given,
        seed=seed,
        resume=resume,
        take_over=take_over,
        progress=not quiet,
    )
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", DpbnnWarning)
        try:
            model, chosen = fit_table(order, Path(schema).read_text())
        except KeyboardInterrupt:
            if order.unfinished.exists():
                sys.stderr.write(f"Interrupted. The same command with --resume goes on from {order.unfinished}.\n")
            raise
    guarantee = model.release.guarantee
    if as_json:
        settings = {name: {"value": value, "reason": reason} for name, value, reason in settings_of(chosen)}
        printed = {"out": out, "settings": settings, "bought_bounds": model.bought_bounds, "notes": model.notes}
        typer.echo(json.dumps(printed | {"guarantee": json.loads(guarantee.to_json())}, indent=2))
    elif not quiet:
        _echo_settings(settings_of(chosen), model.bought_bounds)
        for text in model.notes:
            typer.echo(f"Note: {text}")
        typer.echo(f"{guarantee}\n\n{out} holds the model. dpbnn predict {out} NEW.csv predicts with it.")


def _widths(text: str | None) -> list[int] | None:
    from dpbnn.errors import DpbnnError

    if text is None:
        return None
    if text == "none":
        return []
    try:
        return [int(width) for width in text.split(",")]
    except ValueError as error:
        raise DpbnnError(f"--hidden must be widths such as 64,64, or none, got {text}.") from error


def _echo_settings(settings: list[tuple[str, Any, str]], bounds: dict[str, tuple[Any, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpbnn.tables.model import shown

    table = Table("setting", "value", "because", title="Chosen from public facts")
    for name, value, reason in settings:
        table.add_row(name, shown(value), reason)
    for name, (low, high) in bounds.items():
        table.add_row(f"range of {name}", f"{low:.4g} to {high:.4g}", "bought, as none is in the schema")
    Console().print(table)


def predict(
    model: Annotated[str, typer.Argument(help="The folder that dpbnn fit wrote.")],
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file with new rows.")],
    out: Annotated[str, typer.Option(help="The file to write; .csv or .parquet.")] = "predictions.csv",
    draws: Annotated[int, typer.Option(help="Draws of the weights to average.")] = 100,
    level: Annotated[float, typer.Option(help="Of the interval of a number.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="For the draws.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Add columns to a table: label, probability and uncertainty, or mean, deviation and interval."""
    from pathlib import Path

    from dpbnn import _validate
    from dpbnn.errors import DpbnnError
    from dpbnn.tables.model import load_table_model
    from dpbnn.tables.reading import is_parquet
    from dpbnn.tables.reporting import predicted_columns, write_predictions

    if Path(out).exists():
        raise DpbnnError(f"--out must be a new file, got {out}, which exists; choose another name.")
    if Path(out).suffix.lower() != ".csv" and not is_parquet(out):
        raise DpbnnError(f"--out must end in .csv or .parquet, got {out}.")
    share = _validate.fraction("--level", level)
    loaded = load_table_model(model)
    rows = loaded.read(data, with_target=False)
    added = predicted_columns(loaded, loaded.predict(rows, draws, seed), share)
    write_predictions(loaded.whole(data), added, Path(out), loaded.encoding.schema.separator)
    if as_json:
        typer.echo(json.dumps({"out": out, "rows": rows.rows, "added": list(added)}, indent=2))
    else:
        typer.echo(f"{out} has {rows.rows} rows with {', '.join(added)}.")


def evaluate(
    model: Annotated[str, typer.Argument(help="The folder that dpbnn fit wrote.")],
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file with rows whose target is known.")],
    public: Annotated[
        bool | None, typer.Option("--public/--private", help="Whether the test data is public; asked if not said.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of the weights to average.")] = 100,
    seed: Annotated[int | None, typer.Option(help="For the draws.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure a model on rows whose target is known. Figures from private rows are outside the guarantee."""
    from dpbnn.tables.model import load_table_model
    from dpbnn.tables.reporting import figures_of

    loaded = load_table_model(model)
    rows = loaded.read(data, with_target=True)
    if public is None:
        public = sys.stdin.isatty() and typer.confirm(f"Is {data} public?", default=False)
    figures = figures_of(loaded, loaded.predict(rows, draws, seed), loaded.targets(rows), public)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    promise = figures.pop("guarantee")
    caution = figures.pop("caution", "")
    for name, value in figures.items():
        typer.echo(f"{name.replace('_', ' '):32}{value}")
    typer.echo(f"{'epsilon, delta of the model':32}{promise['epsilon']:g}, {promise['delta']:g} for {promise['unit']}")
    if caution:
        typer.echo(f"\n{caution}")
