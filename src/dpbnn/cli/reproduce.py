"""`dpbnn reproduce`: the paper's experiments."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpbnn.cli.options import AsJson, refuse, show
from dpbnn.errors import DpbnnError

__all__ = ["reproduce"]


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, or all; none lists them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small versions: minutes on two CPU cores.")] = False,
    out: Annotated[str, typer.Option(help="Folder of the page; docs, with --quick reproduction-quick.")] = "",
    minutes: Annotated[float | None, typer.Option(help="Begin nothing new after so many.")] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing: pictures and page from the JSON files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments again and compare the figures.

    Interrupted runs go on where they stopped. MNIST is taken from $DPBNN_DATA, or downloaded.
    """
    from dpbnn.experiments import FULL, ITEMS, QUICK
    from dpbnn.experiments.reproducing import reproduce as run

    folder = Path(out or ("reproduction-quick" if quick else "docs"))
    if draw:
        _draw(folder, names or [])
        return
    if not names:
        titles = {name: item.title for name, item in ITEMS.items()}
        hint = "\ndpbnn reproduce NAME, or all, runs them; with --quick in minutes on two CPU cores."
        show(as_json, titles, "\n".join([*(f"{name:24}{title}" for name, title in titles.items()), hint]))
        return
    for name in names:
        if name not in (choices := [*ITEMS, "all"]):
            refuse("NAME", f"one of {', '.join(map(repr, choices))}", repr(name))
    if minutes is not None and not minutes > 0:
        refuse("--minutes", "> 0", minutes)
    chosen = list(ITEMS) if "all" in names else list(dict.fromkeys(names))
    try:
        outcome = run(chosen, QUICK if quick else FULL, folder, minutes)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. The same command goes on where it stopped.\n")
        raise
    done = f"{folder / 'reproduction.md'} shows {', '.join(outcome.written) or 'nothing new'}."
    left = f"\n{outcome.left} of {outcome.jobs} runs are left; the same command goes on with them."
    show(as_json, {"folder": str(folder), **vars(outcome)}, done + left * bool(outcome.left))


def _draw(folder: Path, names: list[str]) -> None:
    from dpbnn.experiments.reproducing import FOLDER, write_page

    if names:
        raise DpbnnError(f"--draw must stand alone, got {' '.join(names)}; it draws all items that have results.")
    if not list((folder / FOLDER).glob("*.json")):
        raise DpbnnError(f"--draw must find results in {folder / FOLDER}, got none; run dpbnn reproduce NAME first.")
    write_page(folder, draw=True)
    typer.echo(f"{folder / 'reproduction.md'} and its pictures show what the JSON files hold.")
