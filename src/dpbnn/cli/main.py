"""The command line. Each command imports what it needs when it is called, so that `dpbnn --help` comes quickly.

Bad input of any kind ends with one line on standard error and exit code 2.
"""

import json
import sys
import warnings
from typing import Annotated, Any

import typer

from dpbnn.cli import tables as table_commands

__all__ = ["app", "main"]

_BAD_INPUT = 2
PICTURES = (".png", ".svg", ".pdf")
_UsageError: Any = typer.BadParameter.__mro__[1]  # Typer's base class of usage errors, which it does not export

app = typer.Typer(
    help="Differentially private Bayesian neural networks.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from dpbnn._version import __version__

        typer.echo(f"dpbnn {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        return
    raise typer.Exit


def main() -> None:
    """Run the command line and exit."""
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        sys.stderr.write(f"Error: {_one_line(error)}\n")
        sys.exit(_BAD_INPUT)
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """On one line, without a place in the code."""
    sys.stderr.write(f"Warning: {' '.join(str(message).split())}\n")


def _one_line(error: Exception) -> str:
    """The message of an error that is the user's; any other is a bug and is raised again."""
    from dpbnn.errors import DpbnnError

    if isinstance(error, DpbnnError):
        return " ".join(str(error).split())
    if isinstance(error, _UsageError):
        return " ".join(error.format_message().split())
    raise error


@app.command()
def plan(
    dataset_size: Annotated[int, typer.Option(help="Number of records, a public number.")],
    batch_size: Annotated[int, typer.Option(help="Expected number of records in a batch.")],
    method: Annotated[str, typer.Option(help="sgd, sgld, bbp or mc_dropout.")] = "sgd",
    steps: Annotated[int | None, typer.Option(help="Number of steps; or give --epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data: steps = floor(epochs n / B).")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound on the norm of a record's gradient.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise in units of the clip norm.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget; the least noise that keeps it follows.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of the method.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of SGLD (1 is the posterior).")] = None,
    delta: Annotated[
        float | None, typer.Option(help="If not given: the largest power of ten below 1 / dataset size.")
    ] = None,
    clipping: Annotated[str, typer.Option(help="flat or automatic.")] = "flat",
    max_records_per_person: Annotated[int, typer.Option(help="The most records that one person has.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Settings in, epsilon out; or a budget in, noise out. No data is read.

    For sgld, learning rate, clip norm, temperature and noise are tied: three of them give the fourth.
    """
    from dpbnn.methods.registry import METHODS
    from dpbnn.privacy.plan import PrivacyPlan
    from dpbnn.privacy.settings import Given, complete
    from dpbnn.privacy.statement import as_table, number_of_steps, state

    given = Given(clip_norm, noise_multiplier, epsilon, learning_rate, temperature)
    number = number_of_steps(steps, epochs, dataset_size, batch_size)
    chosen = 10.0 ** -len(str(abs(dataset_size))) if delta is None else delta
    draft = PrivacyPlan(dataset_size, batch_size, number, 1.0, 1.0, chosen, clipping, max_records_per_person)
    assumed = {"delta": delta is None, "clip_norm": clip_norm is None and method != "sgld"}
    settings = complete(method, draft, given, {name: own.is_sampler for name, own in METHODS.items()})
    statement = state(method, settings, [name for name, is_assumed in assumed.items() if is_assumed])
    if as_json:
        typer.echo(json.dumps(statement, indent=2, allow_nan=False))
    else:
        as_table(statement)


@app.command()
def audit(
    release: Annotated[str, typer.Argument(help="A saved release; without one, settings as in the paper.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer models and observations: under a minute.")] = False,
    confidence: Annotated[float, typer.Option(help="Of the lower bounds.")] = 0.95,
    plot: Annotated[str, typer.Option(help="A picture to write, such as audit.png.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Attack what is claimed, with records of our own: canaries, batches counted, runs guessed from their release.

    No private data is read. What is found of a release goes into its folder: audit.json, and the card. Exit code 1 says
    that something speaks against the claim.
    """
    from pathlib import Path

    from dpbnn import _validate
    from dpbnn.audit import audit_plan, keep_with_release
    from dpbnn.errors import DpbnnError
    from dpbnn.privacy.plan import PrivacyPlan
    from dpbnn.release.release import guarantee_of

    level = _validate.fraction("--confidence", confidence)
    if plot and (Path(plot).exists() or not Path(plot).parent.is_dir() or Path(plot).suffix not in PICTURES):
        raise DpbnnError(
            f"--plot must be a new file in a folder that exists, ending in {', '.join(PICTURES)}, got {plot}."
        )
    paper = PrivacyPlan(
        dataset_size=60_000, batch_size=256, steps=3515, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5
    )
    plan = guarantee_of(release).plan if release else paper
    if not plan.is_private:
        raise DpbnnError(f"{release} must claim privacy to be audited, got a run without any.")
    found = audit_plan(plan, quick=quick, confidence=level, progress=True)
    typer.echo(found.to_json() if as_json else str(found))
    if release:
        keep_with_release(found, release)
    if plot:
        try:
            found.draw(plot)
        except (OSError, ModuleNotFoundError) as error:
            raise DpbnnError(f"--plot cannot be written: {plot} ({error}).") from error
    raise typer.Exit(1 if found.alarms else 0)


@app.command()
def check(
    path: Annotated[str, typer.Argument(help="A saved release; or with --schema a table that is to be learned from.")],
    schema: Annotated[str, typer.Option(help="What is public about the table.")] = "",
    epsilon: Annotated[float | None, typer.Option(help="The budget that would be spent on it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say what is wrong or risky about a release, or about a fit before it spends anything.

    Exit code 1 says that there is a hole: the promise would not hold.
    """
    from dataclasses import asdict
    from pathlib import Path

    from dpbnn.errors import DpbnnError
    from dpbnn.tables.fitting import Order, findings_before
    from dpbnn.tables.schema import read_schema

    if bool(schema) != (epsilon is not None):
        raise DpbnnError("--schema and --epsilon must be given together, for a table; a release needs none of them.")
    if epsilon is None:
        found = _findings_of_release(path)
    else:
        found = findings_before(Order(Path(path), read_schema(schema), Path("none"), epsilon))
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(own) for own in found]}, indent=2))
    else:
        typer.echo("\n".join(map(str, found)) or "Nothing was found.")
    raise typer.Exit(1 if any(own.severity == "hole" for own in found) else 0)


def _findings_of_release(path: str) -> list[Any]:
    """What `fit` noted, and what the guarantee itself shows: older releases have no notes."""
    from pathlib import Path

    from dpbnn.errors import DpbnnError
    from dpbnn.lint import Subject, inspect, noted
    from dpbnn.release.release import guarantee_of, settings_of

    if Path(path).is_file():
        raise DpbnnError(f"{path} must be the folder of a release; for a table give --schema and --epsilon too.")
    guarantee = guarantee_of(path)
    reasons = " ".join(guarantee.voided_by)
    seed = 0 if "unsafe_seed" in reasons else None
    shown = inspect(Subject(guarantee.plan, unsafe_seed=seed, unsafe_diagnostics="unsafe_diagnostics" in reasons))
    return noted(settings_of(path).get("findings", {}) | {own.name: own.found for own in shown})


@app.command()
def demo(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False) -> None:
    """Train a small private model on data that ships with scikit-learn, and read its guarantee."""
    from dpbnn.cli.demo import as_text, run_demo

    result = run_demo()
    if as_json:
        typer.echo(json.dumps(result | {"guarantee": json.loads(result["guarantee"].to_json())}, indent=2))
    else:
        typer.echo(as_text(result))


for _command in (table_commands.schema, table_commands.fit, table_commands.predict, table_commands.evaluate):
    app.command()(_command)


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Items, or all; none lists them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small versions, for two CPU cores.")] = False,
    out: Annotated[
        str, typer.Option(help="Folder for the page and its files; docs, with --quick reproduction-quick.")
    ] = "",
    minutes: Annotated[
        float | None, typer.Option(help="Begin nothing new after so many; the same call goes on.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing: pictures and page from the JSON files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Run the paper's experiments again, and write down what comes out beside what the paper says.

    Interrupted runs go on where they stopped. MNIST is taken from $DPBNN_DATA, or downloaded.
    """
    from pathlib import Path

    from dpbnn import _validate
    from dpbnn.errors import DpbnnError
    from dpbnn.experiments import FULL, ITEMS, QUICK
    from dpbnn.experiments.page import FOLDER, write_page
    from dpbnn.experiments.reproducing import reproduce as run

    folder = Path(out or ("reproduction-quick" if quick else "docs"))
    if draw:
        if names:
            raise DpbnnError(f"--draw must stand alone, got {' '.join(names)}; it draws all items that have results.")
        if not list((folder / FOLDER).glob("*.json")):
            message = f"--draw must find results in {folder / FOLDER}, got none; run dpbnn reproduce NAME first."
            raise DpbnnError(message)
        write_page(folder, draw=True)
        typer.echo(f"{folder / 'reproduction.md'} and its pictures show what the JSON files hold.")
        return
    if not names:
        listed = {name: item.title for name, item in ITEMS.items()}
        typer.echo(json.dumps(listed, indent=2) if as_json else "\n".join(f"{n:24}{t}" for n, t in listed.items()))
        if not as_json:
            typer.echo("\ndpbnn reproduce NAME, or all, runs them; with --quick in minutes on two CPU cores.")
        return
    for name in names:
        _validate.one_of("NAME", name, [*ITEMS, "all"])
    if minutes is not None:
        _validate.positive("--minutes", minutes)
    chosen = list(ITEMS) if "all" in names else list(dict.fromkeys(names))
    try:
        outcome = run(chosen, QUICK if quick else FULL, folder, minutes)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. The same command goes on where it stopped.\n")
        raise
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **vars(outcome)}, indent=2))
        return
    typer.echo(f"{folder / 'reproduction.md'} shows {', '.join(outcome.written) or 'nothing new'}.")
    if outcome.left:
        typer.echo(f"{outcome.left} of {outcome.jobs} runs are left; the same command goes on with them.")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Gone: the benchmarks run from a clone of the repository alone."""
    from dpbnn.errors import DpbnnError

    raise DpbnnError("dpbnn bench has moved: run make bench, or python benchmarks NAME, in a clone of the repository.")
