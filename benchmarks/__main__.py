"""Runs the programs of this folder by name; `make bench` runs all of them, and then the report.

python benchmarks                      list the programs
python benchmarks NAME [options]       run one; --quick tries it out, --help says more
python benchmarks all [options]        run all that suit this machine, each in its own process
python benchmarks report [--check]     write the tables and pictures of docs/speed.md from the committed figures
"""

import ast
import importlib
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
BAD_INPUT, INTERRUPTED = 2, 130
ANY, GPU = "any machine", "GPU"
PROGRAMS = {
    "clipping": ("clipping.py", ANY),
    "layers": ("layers.py", ANY),
    "methods": ("methods.py", ANY),
    "training": ("training.py", ANY),
    "large": ("large.py", GPU),
    "sweep": ("sweep.py", GPU),
    "prediction": ("prediction.py", ANY),
    "scaling": ("scaling.py", ANY),
    "profile": ("step_profile.py", ANY),  # a file profile.py would hide the module of that name from torch
    "start": ("start.py", ANY),
}
"""Each with its file and what it is for."""


def listing() -> str:
    """A line for each program."""
    lines = [f"  {name:<12}{_first_line(file)}" for name, (file, _) in PROGRAMS.items()]
    others = ["  all         all that suit this machine", "  report      tables and pictures of docs/speed.md"]
    return "\n".join(
        ["python benchmarks NAME [options]; NAME --help says more, --quick tries one out.", "", *lines, *others]
    )


def _first_line(file: str) -> str:
    text = ast.get_docstring(ast.parse((FOLDER / file).read_text())) or ""
    return text.splitlines()[0]


def run(name: str, options: list[str]) -> int:
    """The exit code of a program, in this process."""
    if name == "report":
        return importlib.import_module("report").main(options)
    importlib.import_module(Path(PROGRAMS[name][0]).stem).PROGRAM.run(options)
    return 0


def run_all(options: list[str]) -> int:
    """One after another, each in a fresh process; the worst exit code."""
    import torch

    from program import Parser, is_folder, positive

    parser = Parser("all", "All programs that suit this machine, one after another.")
    parser.add_argument("--quick", action="store_true", help="a few seconds each: only whether they run")
    parser.add_argument("--json", help="folder for the figures, instead of the files beside the programs")
    parser.add_argument("--rounds", type=positive, help="instead of each program's own number")
    given = parser.parse_args(options)
    if given.json is not None and not is_folder(given.json):
        parser.error(f"argument --json: must be a folder, with / at its end if it is new, got {given.json!r}")
    worst = 0
    for name, (file, needs) in PROGRAMS.items():
        if needs == GPU and not torch.cuda.is_available():
            print(f"{name}: left out, as it needs a CUDA device, which is not here", flush=True)
            continue
        print(f"{name}: {_first_line(file)}", flush=True)
        worst = max(worst, abs(_run_apart(name, options)))
    return worst


def _run_apart(name: str, options: list[str]) -> int:
    child = subprocess.Popen([sys.executable, str(FOLDER), name, *options])
    try:
        return child.wait()
    except KeyboardInterrupt:
        if child.poll() is None:  # at a terminal it was interrupted as well, and needs no second one
            child.send_signal(signal.SIGINT)
        if child.wait() == INTERRUPTED:  # and has said so
            sys.exit(INTERRUPTED)
        raise


def main(arguments: list[str]) -> int:
    """The exit code; bad input and interrupts are answered with one line."""
    name, *options = arguments or [""]
    if name in ("", "-h", "--help"):
        print(listing())
        return 0
    choices = [*PROGRAMS, "all", "report"]
    if name not in choices:
        print(f"Error: NAME must be one of {', '.join(choices)}, got {name!r}.", file=sys.stderr)
        return BAD_INPUT
    try:
        return run_all(options) if name == "all" else run(name, options)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is on its way out, and a second one would show how
        written = "what was finished is written" if name == "all" else "nothing was written"
        print(f"{name}: interrupted; {written}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        from dpbnn.errors import DpbnnError

        if not isinstance(error, DpbnnError):
            raise
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
