"""What all programs have in common: options, a JSON file for figures of every machine, tables, a picture.

Figures are filed in a JSON file beside the program under the machine's name, so that those of others stay.
"""

import argparse
import hashlib
import io
import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from rich.console import Console
from rich.table import Table as RichTable

import dpbnn
from dpbnn.errors import DpbnnError
from measure import Build, code_state, device, machine, peak_megabytes, print_peak

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "IMAGES", "Figures", "Options", "Parser", "Program", "Results", "Table", "counts", "is_folder", "is_installed",
    "mark_of", "positive", "uninterrupted", "write",
]  # fmt: skip

NO_PICTURE = "No picture without matplotlib; pip install -e '.[plots]' adds it."

Options = argparse.Namespace
Figures = dict[str, Any]
"""Of one machine."""
Results = dict[str, Figures]
"""Of all machines, by name."""

IMAGES = Path(__file__).parent.parent / "docs" / "images"


class Parser(argparse.ArgumentParser):
    """Answers bad options with one line and exit code 2."""

    def __init__(self, name: str, text: str | None) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(f"python benchmarks {name}", description=text, formatter_class=layout)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit."""
        self.exit(2, f"Error: {message}; {self.prog} --help lists the options.\n")


def positive(text: str) -> int:
    """An option that says how many: a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def counts(**defaults: int) -> dict[str, dict[str, Any]]:
    """Options that say how many, by their defaults."""
    return {name.replace("_", "-"): {"type": positive, "default": default} for name, default in defaults.items()}


def is_folder(path: str) -> bool:
    """Whether --json means a folder, which is made where it is not there yet; what it is to lie in must be."""
    folder = path.endswith("/") or Path(path).is_dir()
    above = Path(path) if folder and Path(path).exists() else Path(path).parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise DpbnnError(f"--json must be in a folder that is there and can be written to, got {path!r}.")
    return folder


@dataclass(frozen=True)
class Table:
    """Words and figures, for a terminal and for a page alike."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def for_terminal(self) -> RichTable:
        """A table of Rich's."""
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
            raise DpbnnError(f"{self.name} needs a CUDA device, which is not here; --quick tries it out on a CPU.")
        target = self._target(options)
        code, day = code_state(), date.today().isoformat()
        figures = _rounded({"torch": torch.__version__, "code": code, "date": day} | self.measure(options))
        if not figures["rows"]:
            raise DpbnnError(f"{self.name} found nothing to measure; --only must be how one of its names starts.")
        for table in self.tables(machine(), figures):
            Console(width=None if sys.stdout.isatty() else 140).print(table.for_terminal())
        if target is not None:
            results = _read(target) | {machine(): figures}
            with uninterrupted():
                write({target: f"{json.dumps(results, indent=1)}\n".encode()})
                write(self.drawn(results) if target == self.json else {})

    def _target(self, options: Options) -> Path | None:
        """Where figures go, if anywhere; checked before they are measured, so that none are lost."""
        target = None if options.quick else self.json
        if options.json is not None:
            target = Path(options.json) / self.json.name if is_folder(options.json) else Path(options.json)
        if target is not None:
            _read(target)
        return target

    def peak(self, case: str, size: int, options: Options) -> float:
        """Megabytes that a case of `builds` takes on `size` records."""
        assert self.builds is not None
        watched = ["--memory-of", case, "--memory-size", str(size), *(["--quick"] if options.quick else [])]
        return peak_megabytes(self.builds(case, options), size, [str(self.json.parent), self.name, *watched])

    def drawn(self, results: Results) -> dict[Path, bytes]:
        """The picture, as SVG and PNG, if there is one."""
        if self.picture is None or not results or not is_installed("matplotlib", NO_PICTURE):
            return {}
        import matplotlib

        svg, png = io.BytesIO(), io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": self.name}):  # the same figures give the same file
            figure = self.picture(results)
            figure.savefig(svg, format="svg", metadata={"Date": None, "Description": mark_of(results)})
            figure.savefig(png, format="png", dpi=200)
        return {IMAGES / f"{self.name}.svg": svg.getvalue(), IMAGES / f"{self.name}.png": png.getvalue()}

    def _parser(self) -> Parser:
        parser = Parser(self.name, sys.modules[self.measure.__module__].__doc__)
        parser.add_argument("--quick", action="store_true", help="a few seconds: only whether it runs; writes nothing")
        parser.add_argument("--json", help="file or folder for the figures, instead of the file beside the program")
        parser.add_argument("--memory-of", help=argparse.SUPPRESS)
        parser.add_argument("--memory-size", type=int, help=argparse.SUPPRESS)
        for name, settings in (self.options or {}).items():
            parser.add_argument(f"--{name}", **settings)
        return parser


def mark_of(results: Results) -> str:
    """Stands in a picture, and tells whether it shows these figures."""
    return f"figures {hashlib.sha256(json.dumps(results).encode()).hexdigest()[:16]}"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """For what takes a moment and belongs together."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write(files: Mapping[Path, bytes]) -> None:
    """Each under another name first: no file is ever half there."""
    for file, content in files.items():
        file.parent.mkdir(exist_ok=True)
        part = file.with_name(f"{file.name}.part")
        part.write_bytes(content)
        part.replace(file)


@cache
def is_installed(package: str, without: str) -> bool:
    """Whether an optional package is there; what it means if not is said once."""
    there = find_spec(package) is not None
    if not there:
        print(without, file=sys.stderr)
    return there


def _read(file: Path) -> Results:
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_bytes() if file.is_file() else b"")
    except (OSError, ValueError) as error:
        raise DpbnnError(f"{file} must hold JSON, got {error}; mend or remove it.") from None
    if not isinstance(found, dict) or not all(isinstance(figures, dict) for figures in found.values()):
        raise DpbnnError(f"{file} must hold an object of objects, one for each machine; mend or remove it.")
    return found


def _rounded(value: Any) -> Any:
    """Four digits: more would be noise, and would hide in a diff what changed."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value
