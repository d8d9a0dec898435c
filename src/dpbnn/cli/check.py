"""`dpbnn check`: the privacy linter on a release, or on a table before a fit."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import dpbnn
from dpbnn.cli.options import AsJson, show
from dpbnn.errors import DpbnnError

__all__ = ["check"]


def check(
    path: Annotated[str, typer.Argument(help="A saved release; or with --schema a table that is to be learned from.")],
    schema: Annotated[str, typer.Option(help="What is public about the table.")] = "",
    epsilon: Annotated[float | None, typer.Option(help="The budget that would be spent on it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find privacy mistakes in a release, or before a fit.

    Exit code 1: there is a hole, the promise would not hold.
    """
    if bool(schema) != (epsilon is not None):
        raise DpbnnError("--schema and --epsilon must be given together, for a table; a release needs none of them.")
    findings = _about_release(path) if epsilon is None else _about_table(path, schema, epsilon)
    limits = "" if epsilon is None else " Values were not looked at: dpbnn fit refuses bad ones."
    in_words = "\n".join(map(str, findings)) or f"Nothing was found.{limits}"
    show(as_json, {"findings": [asdict(finding) for finding in findings]}, in_words)
    raise typer.Exit(1 if any(finding.severity == "hole" for finding in findings) else 0)


def _about_table(path: str, schema: str, epsilon: float) -> "list[dpbnn.lint.Finding]":
    from dpbnn.tables.fitting import Order, findings_before
    from dpbnn.tables.schema import read_schema

    return findings_before(Order(Path(path), read_schema(schema), Path("none"), epsilon))


def _about_release(path: str) -> "list[dpbnn.lint.Finding]":
    """Findings that `fit` noted, and those that the guarantee shows: older releases have no notes."""
    from dpbnn.release.release import guarantee_of, settings_of

    if Path(path).is_file():
        raise DpbnnError(f"{path} must be the folder of a release; for a table give --schema and --epsilon too.")
    guarantee = guarantee_of(path)
    reasons = " ".join(guarantee.voided_by)
    seed, diagnostics = 0 if "unsafe_seed" in reasons else None, "unsafe_diagnostics" in reasons
    subject = dpbnn.lint.Subject(guarantee.plan, unsafe_seed=seed, unsafe_diagnostics=diagnostics)
    shown = {finding.name: finding.found for finding in dpbnn.lint.inspect(subject)}
    return dpbnn.lint.noted(settings_of(path).get("findings", {}) | shown)
