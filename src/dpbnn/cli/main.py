"""The command line. Commands import what they need when they run, so that `dpbnn --help` comes at once.

Bad input of any kind ends with one line on standard error and exit code 2.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dpbnn
from dpbnn.cli.audit import audit
from dpbnn.cli.bench import bench
from dpbnn.cli.check import check
from dpbnn.cli.demo import demo
from dpbnn.cli.evaluate import evaluate
from dpbnn.cli.fit import fit
from dpbnn.cli.plan import plan
from dpbnn.cli.predict import predict
from dpbnn.cli.reproduce import reproduce
from dpbnn.cli.schema import schema
from dpbnn.errors import DpbnnError

__all__ = ["app", "main"]

COMMANDS = {
    "Start here": (demo, plan),
    "Learn from a table": (schema, fit, predict, evaluate),
    "Verify a promise": (check, audit),
    "Research": (reproduce,),
}
BAD_INPUT = 2
_UsageError: Any = typer.BadParameter.__mro__[1]  # Typer's base class of usage errors, which it does not export


class _ListedByPurpose(TyperGroup):
    """Lists commands under the title that each was registered with."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        commands: Mapping[str, Any] = self.commands
        for name, command in commands.items():
            if not command.hidden:
                line = command.get_short_help_str(formatter.width)
                sections.setdefault(command.rich_help_panel, []).append((name, line))
        for title, lines in sections.items():
            with formatter.section(title):
                formatter.write_dl(lines)


app = typer.Typer(
    cls=_ListedByPurpose,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Train neural networks under differential privacy: predictions that say how sure they are, and a proven limit on
    what they reveal about anyone.

    Each command has --help. New here? Run dpbnn demo.
    """
    if version:
        typer.echo(f"dpbnn {dpbnn.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        return
    raise typer.Exit


for title, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=title)(command)
app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def main() -> None:
    """Run the command line and exit."""
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except DpbnnError as error:
        _fail(str(error))
    except _UsageError as error:
        _fail(error.format_message())
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    sys.stderr.write(f"Error: {' '.join(message.split())}\n")
    sys.exit(BAD_INPUT)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on one line, without a place in the code."""
    sys.stderr.write(f"Warning: {' '.join(str(message).split())}\n")
