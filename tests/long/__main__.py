"""Run what takes too long for every change, and write down what came out: `make test-long`."""

import datetime
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).with_name("results.md")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup")
PARTS = {
    "all triples of settings, and quadruples at the privacy boundary": (*PYTEST, "tests/long/combinations.py"),
    "the fast tests, chance from the operating system": (*PYTEST, "--fresh", "-m", "not slow and not gpu"),
    "the audit in full": (sys.executable, "-m", "dpbnn", "audit"),
}


def main() -> int:
    """All parts, whatever comes out of each; the number of those that failed."""
    commit = subprocess.check_output(("git", "describe", "--always", "--dirty"), text=True).strip()
    where = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    lines = [f"`make test-long` of {datetime.date.today()}, commit {commit}, {where}."]
    failed = 0
    for title, command in PARTS.items():
        print(f"\n{title}", flush=True)
        began = time.monotonic()
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        print(run.stdout, flush=True)
        minutes, outcome = (time.monotonic() - began) / 60, "FAILED" if run.returncode else "passed"
        failed += run.returncode != 0
        lines += [f"## {title.capitalize()}: {outcome}, {minutes:.0f} minutes", run.stdout.strip().splitlines()[-1]]
    RESULTS.write_text("\n\n".join(lines) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
