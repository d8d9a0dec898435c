"""Many small runs one after another beside all at once, by `dpbnn.fit_many`; for a GPU.

    python benchmarks sweep [--runs 20] [--steps 1500] [--rounds 2]

A sweep over learning rates: each run is a network 784-100-10 on 10,000 synthetic records, batch 256.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

import dpbnn
from dpbnn.plots.style import panels
from measure import Step, device, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

APART, TOGETHER = "one after another", "all at once"


def setups(count: int, records: int, steps: int) -> list[dpbnn.Setup]:
    """One for each learning rate."""
    plan = dpbnn.PrivacyPlan(records, min(256, records // 2), steps, 1.5, 1.3, 1e-5)
    network = dpbnn.networks.MLP(784, [100], 10).to(device())
    rates = [0.5 * 0.9**number for number in range(count)]
    return [dpbnn.Setup(network, dpbnn.SGD(rate), plan, dpbnn.Categorical(), seed=0) for rate in rates]


def apart(runs: list[dpbnn.Setup], x: Tensor, y: Tensor) -> None:
    """One fit after another."""
    for run in runs:
        dpbnn.fit(
            run.model, x, y, method=run.method, plan=run.plan, likelihood=run.likelihood, seed=run.seed, progress=False
        )


def measure(options: Options) -> Figures:
    """Both ways, in turn."""
    count, records, steps, rounds = options.runs, 10_000, options.steps, options.rounds
    if options.quick:
        count, records, steps, rounds = 3, 500, 4, 1
    runs = setups(count, records, steps)
    x, y = torch.randn(records, 784, device=device()), torch.randint(10, (records,), device=device())
    ways: dict[str, Step] = {
        APART: lambda: apart(runs, x, y),
        TOGETHER: lambda: dpbnn.fit_many(runs, x, y, progress=False),
    }
    times = take_turns(ways, rounds, 0.0, "sweep")
    rows = [{"way": way} | times.beside(way, APART) | {"first_seconds": times.first[way]} for way in ways]
    return {"runs": count, "steps": steps, "records": records, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = [
        [row["way"], f"{row['milliseconds'] / 1e3:.2f}", f"{row['ratio']:.3f}x", f"{row['first_seconds']:.2f}"]
        for row in figures["rows"]
    ]
    title = f"{machine}, {figures['runs']} runs of {figures['steps']} steps, torch {figures['torch']}"
    return [Table(title, ["way", "s", f"time / {APART}", "s, first time"], rows)]


def picture(results: Results) -> "Figure":
    """Seconds, a panel for each machine."""
    figure, axes = panels(len(results), 1, width=100, height=35)
    for one, (machine, figures) in zip(axes, results.items(), strict=True):
        seconds = {row["way"]: row["milliseconds"] / 1e3 for row in figures["rows"]}
        bars(one, seconds, f"{figures['runs']} runs, {machine}", "seconds", one=False)
    return figure


OPTIONS = counts(runs=20, steps=1500, rounds=2)
PROGRAM = Program("sweep", __file__, measure, tables, picture, OPTIONS, gpu_only=True)
