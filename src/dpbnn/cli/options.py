"""Options that commands share, and how commands print and refuse."""

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dpbnn.errors import DpbnnError

__all__ = ["AsJson", "Draws", "ModelFolder", "Seed", "refuse", "show", "unused"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ModelFolder = Annotated[str, typer.Argument(help="The folder that dpbnn fit wrote.")]
Draws = Annotated[int, typer.Option(help="Networks drawn from the posterior, whose predictions are averaged.")]
Seed = Annotated[int | None, typer.Option(help="Makes these draws repeatable.")]


def show(as_json: bool, value: Any, text: str) -> None:
    """Print for machines or for people; a number that JSON does not know is an error."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False) if as_json else text)


def unused(path: str) -> Path:
    """The path of `--out`, where nothing may be yet."""
    if Path(path).exists():
        raise DpbnnError(f"--out must be a new file, got {path}, which exists; choose another name.")
    return Path(path)


def refuse(option: str, expected: str, value: object) -> NoReturn:
    """Raise the error of a wrong option: what was expected, what came."""
    raise DpbnnError(f"{option} must be {expected}, got {value}.")
