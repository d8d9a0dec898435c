"""`dpbnn audit`: attacks on a claimed guarantee."""

from pathlib import Path
from typing import Annotated

import typer

import dpbnn
from dpbnn.cli.options import AsJson, refuse
from dpbnn.errors import DpbnnError

__all__ = ["audit"]

PICTURES = (".png", ".svg", ".pdf")


def audit(
    release: Annotated[str, typer.Argument(help="A saved release; without one, the paper's settings.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer models and observations: under a minute.")] = False,
    confidence: Annotated[float, typer.Option(help="Of the lower bounds on epsilon.")] = 0.95,
    plot: Annotated[str, typer.Option(help="A picture to write, such as audit.png.")] = "",
    as_json: AsJson = False,
) -> None:
    """Attack a promise with canaries and membership tests.

    The attacks use synthetic records; no private data is read. Findings about a release go into its folder, to
    audit.json and the card. Exit code 1: something contradicts the promise.
    """
    from dpbnn.release.release import guarantee_of

    if not 0 < confidence < 1:
        refuse("--confidence", "> 0 and < 1", confidence)
    if plot and (Path(plot).exists() or not Path(plot).parent.is_dir() or Path(plot).suffix not in PICTURES):
        refuse("--plot", f"a new file in a folder that exists, ending in {', '.join(PICTURES)}", plot)
    paper = dpbnn.PrivacyPlan(
        dataset_size=60_000, batch_size=256, steps=3515, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5
    )
    plan = guarantee_of(release).plan if release else paper
    if not plan.is_private:
        raise DpbnnError(f"{release} must claim privacy to be audited, got a run without any.")
    result = dpbnn.audit.audit_plan(plan, quick=quick, confidence=confidence, progress=True)
    typer.echo(result.to_json() if as_json else str(result))
    if release:
        dpbnn.audit.keep_with_release(result, release)
    if plot:
        try:
            result.draw(plot)
        except (OSError, ModuleNotFoundError) as error:
            raise DpbnnError(f"--plot cannot be written: {plot} ({error}).") from error
    raise typer.Exit(1 if result.alarms else 0)
