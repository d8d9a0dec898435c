"""What a step of each method costs, as a ratio to a DP-SGD step.

    python benchmarks methods [--rounds 9] [--batch-size 256]

A step is what `dpbnn.fit` does: Poisson batch, weights, clipped sum, noise, update, keep.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import dpbnn
from dpbnn.methods import Method
from dpbnn.plots.style import panels
from measure import Step, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts
from variants import LEARNING_RATE, NETWORKS, step_of_fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRIOR = dpbnn.Gaussian(0.1)
METHODS: dict[str, Method[Any]] = {
    "SGD": dpbnn.SGD(LEARNING_RATE, PRIOR),
    "SGLD": dpbnn.SGLD(LEARNING_RATE / 1024, PRIOR),
    "BBP aligned": dpbnn.BBP(LEARNING_RATE, PRIOR),
    "BBP joint, 1 draw": dpbnn.BBP(LEARNING_RATE, PRIOR, form="joint"),
    "BBP joint, 4 draws": dpbnn.BBP(LEARNING_RATE, PRIOR, form="joint", num_draws=4),
    "MC dropout": dpbnn.MCDropout(LEARNING_RATE, PRIOR),
}


def prepare(model: str, label: str, batch_size: int) -> Step:
    """A step of a method on its own copy of the model."""
    variant = partial(step_of_fit, method=METHODS[label])
    return NETWORKS[model].step(variant, batch_size, dropout=0.5 if label == "MC dropout" else 0.0)


def measure(options: Options) -> Figures:
    """All methods on each model."""
    rounds, batch_size = (1, 16) if options.quick else (options.rounds, options.batch_size)
    rows = []
    for model in NETWORKS:
        steps = {label: prepare(model, label, batch_size) for label in METHODS}
        times = take_turns(steps, rounds, 0.01 if options.quick else 0.25, model)
        rows += [{"model": model, "method": label} | times.beside(label, "SGD") for label in METHODS]
    return {"batch_size": batch_size, "rounds": rounds, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    found = {(row["model"], row["method"]): row for row in figures["rows"]}
    rows = []
    for label in METHODS:
        cells = [[f"{found[m, label]['milliseconds']:.2f}", f"{found[m, label]['ratio']:.2f}x"] for m in NETWORKS]
        rows.append([label, *(cell for pair in cells for cell in pair)])
    columns = ["method", *(f"{model}, {unit}" for model in NETWORKS for unit in ("ms", "time / SGD"))]
    return [Table(f"{machine}, batch {figures['batch_size']}, torch {figures['torch']}", columns, rows)]


def picture(results: Results) -> "Figure":
    """Time over DP-SGD, a panel for each machine and model."""
    cases = [(name, model) for name in results for model in NETWORKS]
    figure, axes = panels(len(results), len(NETWORKS), height=45)
    for one, (name, model) in zip(axes, cases, strict=True):
        ratios = {row["method"]: row["ratio"] for row in results[name]["rows"] if row["model"] == model}
        bars(one, ratios, f"{model}, {name}", "time / DP-SGD")
    return figure


PROGRAM = Program("methods", __file__, measure, tables, picture, counts(rounds=9, batch_size=256))
