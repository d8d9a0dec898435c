"""`dpbnn fit`: a private model of a table."""

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from dpbnn.cli.options import AsJson, show
from dpbnn.errors import DpbnnError, DpbnnWarning
from dpbnn.methods import METHODS

__all__ = ["fit"]


def fit(
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file with private rows.")],
    schema: Annotated[str, typer.Option(help="What is public about the table; dpbnn schema writes one to fill in.")],
    out: Annotated[str, typer.Option(help="A new folder for the model.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of everything that is released.")],
    target: Annotated[str, typer.Option(help="The column to predict, if not the schema's.")] = "",
    delta: Annotated[float | None, typer.Option(help="If not given: 1e-5, or less where there are many rows.")] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "sgld",
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected rows in a step.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound on the norm of a row's gradient.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Step size along the mean gradient.")] = None,
    prior_scale: Annotated[float | None, typer.Option(help="Standard deviation of the Gaussian prior.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Widths of hidden layers, such as 64,64; none for none.")] = None,
    seed: Annotated[int | None, typer.Option(help="For the first weights; never for sampling or noise.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="With --resume: if its host is gone.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a private model on a table.

    Settings that are not given are chosen from public facts, and shown with the reason. An interrupted run keeps its
    state in OUT.unfinished, which is as secret as the data; --resume goes on from there without spending twice.
    """
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
    public = read_schema(schema, target or None)
    order = Order(Path(data), public, Path(out), epsilon, delta, method, given, seed, resume, take_over, not quiet)
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", DpbnnWarning)
        try:
            model, chosen = fit_table(order, Path(schema).read_text())
        except KeyboardInterrupt:
            how = f"with --resume goes on from {order.unfinished}" if order.unfinished.exists() else "starts again"
            sys.stderr.write(f"Interrupted. The same command {how}.\n")
            raise
    guarantee = model.release.guarantee
    if not as_json and not quiet:
        _print_settings(settings_of(chosen), model.bought_bounds)
    if as_json or not quiet:
        settings = {name: {"value": value, "reason": reason} for name, value, reason in settings_of(chosen)}
        printed = {"out": out, "settings": settings, "bought_bounds": model.bought_bounds, "notes": model.notes}
        notes = "".join(f"Note: {text}\n" for text in model.notes)
        done = f"{notes}{guarantee}\n\n{out} holds the model. dpbnn predict {out} NEW.csv predicts with it."
        show(as_json, printed | {"guarantee": json.loads(guarantee.to_json())}, done)


def _widths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if text == "none":
        return []
    try:
        return [int(width) for width in text.split(",")]
    except ValueError as error:
        raise DpbnnError(f"--hidden must be widths such as 64,64, or none, got {text}.") from error


def _print_settings(settings: list[tuple[str, Any, str]], bounds: dict[str, tuple[Any, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpbnn.tables.model import shown

    table = Table("setting", "value", "because", title="Chosen from public facts")
    for name, value, reason in settings:
        table.add_row(name, shown(value), reason)
    for name, (low, high) in bounds.items():
        table.add_row(f"range of {name}", f"{low:.4g} to {high:.4g}", "bought, as none is in the schema")
    Console().print(table)
