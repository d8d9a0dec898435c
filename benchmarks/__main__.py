"""Runs the programs of this folder by name: what `dpbnn bench` calls.

dpbnn bench                      the programs
dpbnn bench NAME [options]       one of them; --quick tries it out, --help says more
dpbnn bench all [options]        all that suit this machine
dpbnn bench report [--check]     tables and pictures of docs/speed.md, from the figures that were written down
"""

import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ANY, GPU = "any machine", "GPU"
PROGRAMS = {
    "clipping": ("clipping.py", ANY),
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
    return "\n".join(["dpbnn bench NAME [options]; NAME --help says more, --quick tries one out.", "", *lines, *others])


def _first_line(file: str) -> str:
    text = ast.get_docstring(ast.parse((FOLDER / file).read_text())) or ""
    return text.splitlines()[0]


def run(name: str, options: list[str]) -> int:
    """The exit code of a program."""
    return subprocess.run([sys.executable, str(FOLDER / PROGRAMS[name][0]), *options], check=False).returncode


def run_all(options: list[str]) -> int:
    """One after another; the worst exit code."""
    import torch

    suits = {ANY, GPU} if torch.cuda.is_available() else {ANY}
    chosen = [name for name, (_, needs) in PROGRAMS.items() if needs in suits]
    worst = 0
    for name in chosen:
        print(f"{name}: {_first_line(PROGRAMS[name][0])}", flush=True)
        worst = max(worst, abs(run(name, options)))
    return worst


def main(arguments: list[str]) -> int:
    """The exit code."""
    name, *options = arguments or [""]
    if not name:
        print(listing())
        return 0
    if name == "all":
        return run_all(options)
    if name == "report":
        from report import main as report

        return report(options)
    if name not in PROGRAMS:
        choices = ", ".join([*PROGRAMS, "all", "report"])
        print(f"Error: NAME must be one of {choices}, got {name!r}.", file=sys.stderr)
        return 2
    return run(name, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
