"""How long it takes until the first step: seconds of each part of a short run, in fresh processes.

    python benchmarks start [--rounds 5]

From `import torch` to the end of a `fit` of the paper's size with few steps: medians over processes.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from dpbnn.plots.style import panels, top_legend
from pictures import parts
from program import Figures, Options, Program, Results, Table, counts
from variants import NETWORKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 20


def once(network: str) -> dict[str, float]:
    """Seconds of each part."""
    command = [sys.executable, str(Path(__file__).with_name("first_step.py")), network, str(STEPS)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def measure(options: Options) -> Figures:
    """Both networks in turn."""
    rounds = 1 if options.quick else options.rounds
    networks = ["CNN"] if options.quick else list(NETWORKS)
    found: dict[str, list[dict[str, float]]] = {network: [] for network in networks}
    for _ in track(range(rounds), "fresh processes", console=Console(stderr=True)):
        for network in networks:
            found[network].append(once(network))
    rows = [
        {"network": network, "parts": {part: statistics.median(one[part] for one in all_) for part in all_[0]}}
        for network, all_ in found.items()
    ]
    return {"rounds": rounds, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = figures["rows"]
    cells = [[part, *(f"{row['parts'][part]:.3f}" for row in rows)] for part in rows[0]["parts"]]
    return [Table(f"{machine}, torch {figures['torch']}", ["part", *(f"{row['network']}, s" for row in rows)], cells)]


def picture(results: Results) -> "Figure":
    """A stacked bar for each network, a panel for each machine."""
    figure, axes = panels(len(results), 1, height=38)
    for one, (machine, figures) in zip(axes, results.items(), strict=True):
        found = {row["network"]: row["parts"] for row in figures["rows"]}
        parts(one, found, list(figures["rows"][0]["parts"]), machine, "seconds")
    top_legend(figure, axes[0], 3)
    return figure


PROGRAM = Program("start", __file__, measure, tables, picture, counts(rounds=5))
