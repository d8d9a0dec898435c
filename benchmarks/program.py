"""What all programs have in common: options, a JSON file for figures of every machine, tables, a picture.

Figures are filed in a JSON file beside the program under the machine's name, so that those of others stay.
"""

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

import dpbnn
from measure import Build, device, machine, peak_megabytes, print_peak

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["IMAGES", "Figures", "Options", "Program", "Results", "Table"]

Options = argparse.Namespace
Figures = dict[str, Any]
"""Of one machine."""
Results = dict[str, Figures]
"""Of all machines, by name."""

IMAGES = Path(__file__).parent.parent / "docs" / "images"


@dataclass(frozen=True)
class Table:
    """Words and figures, for a terminal and for a page alike."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def for_terminal(self) -> RichTable:
        """By Rich."""
        table = RichTable(*self.columns, title=self.title)
        for row in self.rows:
            table.add_row(*row)
        return table

    def for_page(self) -> str:
        """Markdown."""
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        lines = [self.columns, ["---"] * len(self.columns), *rows]
        return f"{self.title}:\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Program:
    """One program.

    Args:
        name: what it is called by.
        file: of the program; its JSON file lies beside it.
        measure: the figures of this machine.
        tables: figures of one machine as tables; the first argument is its name.
        picture: figures of all machines as a picture.
        options: further options by name, each with the arguments of `ArgumentParser.add_argument`.
        builds: for memory on a CPU: what a case, by name, takes.
        gpu_only: without --quick, a CPU is not worth the wait.
    """

    name: str
    file: str
    measure: Callable[[Options], Figures]
    tables: Callable[[str, Figures], list[Table]]
    picture: "Callable[[Results], Figure] | None" = None
    options: Mapping[str, Mapping[str, Any]] | None = None
    builds: Callable[[str, Options], Build] | None = None
    gpu_only: bool = False

    @property
    def json(self) -> Path:
        """Where the committed figures are."""
        return Path(self.file).with_suffix(".json")

    def results(self) -> Results:
        """Everything that was measured so far."""
        return _read(self.json)

    def run(self, arguments: list[str] | None = None) -> None:
        """Measure, show, write down."""
        options = self._parser().parse_args(arguments)
        warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
        warnings.filterwarnings("ignore", module="opacus")
        warnings.filterwarnings("ignore", message="Full backward hook")
        if options.memory_of:
            assert self.builds is not None
            print_peak(self.builds(options.memory_of, options), options.memory_size)
            return
        if self.gpu_only and device() == "cpu" and not options.quick:
            print(f"{self.name} needs a CUDA device, which is not here; --quick tries it out on a CPU.")
            return
        figures = _rounded({"torch": torch.__version__} | self.measure(options))
        for table in self.tables(machine(), figures):
            Console(width=None if sys.stdout.isatty() else 140).print(table.for_terminal())
        target = options.json or (None if options.quick else self.json)
        if target is not None and target.is_dir():
            target = target / self.json.name
        if target is not None:
            target.write_text(json.dumps(_read(target) | {machine(): figures}, indent=1) + "\n")
        if target == self.json:
            self.draw()

    def peak(self, case: str, size: int, options: Options) -> float:
        """Megabytes that a case of `builds` takes on `size` records."""
        assert self.builds is not None
        again = [self.file, "--memory-of", case, "--memory-size", str(size), *(["--quick"] if options.quick else [])]
        return peak_megabytes(self.builds(case, options), size, again)

    def draw(self) -> None:
        """The picture, as SVG and PNG."""
        if self.picture is None or not self.results():
            return
        try:
            import matplotlib
        except ImportError:
            print("No picture without matplotlib; pip install 'dpbnn[plots]' adds it.", file=sys.stderr)
            return
        IMAGES.mkdir(exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": self.name}):  # the same figures give the same file
            figure = self.picture(self.results())
            figure.savefig(IMAGES / f"{self.name}.svg", metadata={"Date": None})
            figure.savefig(IMAGES / f"{self.name}.png", dpi=200)

    def _parser(self) -> argparse.ArgumentParser:
        text = sys.modules[self.measure.__module__].__doc__
        parser = argparse.ArgumentParser(
            f"dpbnn bench {self.name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--quick", action="store_true", help="a few seconds: only whether it runs; writes nothing")
        parser.add_argument(
            "--json", type=Path, help="file or folder for the figures, instead of the file beside the program"
        )
        parser.add_argument("--memory-of", help=argparse.SUPPRESS)
        parser.add_argument("--memory-size", type=int, help=argparse.SUPPRESS)
        for name, settings in (self.options or {}).items():
            parser.add_argument(f"--{name}", **settings)
        return parser


def _read(file: Path) -> Results:
    return json.loads(file.read_text()) if file.exists() else {}


def _rounded(value: Any) -> Any:
    """Four digits: more would be noise, and would hide in a diff what changed."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value
