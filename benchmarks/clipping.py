"""What privacy costs: the clipped gradient and the whole private step beside plain PyTorch and Opacus.

    python benchmarks clipping [--rounds 9] [--batch-size 256] [--model MLP]

The step of fit draws a Poisson batch as well, and on a GPU replays a CUDA graph. Memory is what model, data, the
trial of the model and steps take on top of the libraries. Opacus is left out if it is not installed
(`pip install -e '.[bench]'`).
"""

from functools import partial
from typing import TYPE_CHECKING

from dpbnn.plots.style import panels
from measure import Build, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts
from variants import (
    NETWORKS,
    Variant,
    clipped_gradient,
    opacus_ghost,
    opacus_hooks,
    opacus_is_there,
    plain_gradient,
    plain_step,
    private_step,
    step_of_fit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS: dict[str, tuple[Variant, str]] = {
    "plain gradient": (plain_gradient, "plain gradient"),
    "dpbnn, clipped gradient": (clipped_gradient, "plain gradient"),
    "plain SGD step": (plain_step, "plain SGD step"),
    "dpbnn, whole private step": (private_step, "plain SGD step"),
    "dpbnn, step of fit": (step_of_fit, "plain SGD step"),
    "Opacus, ghost step": (opacus_ghost, "plain SGD step"),
    "Opacus, hooks step": (opacus_hooks, "plain SGD step"),
}
"""Each with the variant that it is compared to."""


def build(case: str, options: Options) -> Build:
    """For the peak of memory: "model/variant"."""
    model, variant = case.split("/")
    return partial(NETWORKS[model].step, VARIANTS[variant][0])


def measure(options: Options) -> Figures:
    """All variants on each model."""
    rounds, batch_size = (1, 16) if options.quick else (options.rounds, options.batch_size)
    variants = [name for name in VARIANTS if not name.startswith("Opacus")]
    variants = list(VARIANTS) if opacus_is_there() else variants
    rows = []
    for model in [options.model] if options.model else list(NETWORKS):
        steps = {variant: NETWORKS[model].step(VARIANTS[variant][0], batch_size) for variant in variants}
        times = take_turns(steps, rounds, 0.01 if options.quick else 0.25, f"{model}, timing")
        del steps
        watched = variants[:2] if options.quick else variants
        memory = {variant: PROGRAM.peak(f"{model}/{variant}", batch_size, options) for variant in watched}
        for variant in watched:
            base = VARIANTS[variant][1]
            figures = times.beside(variant, base)
            in_memory = {"megabytes": memory[variant], "memory_ratio": memory[variant] / memory[base]}
            rows.append({"model": model, "variant": variant} | figures | in_memory)
    return {"batch_size": batch_size, "rounds": rounds, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = []
    for row in figures["rows"]:
        low, high = row["ratio_range"]
        times = [f"{row['milliseconds']:.2f}", f"{row['ratio']:.2f}x", f"{low:.2f} to {high:.2f}"]
        rows.append([row["model"], row["variant"], *times, f"{row['megabytes']:.0f}", f"{row['memory_ratio']:.2f}x"])
    title = f"{machine}, batch {figures['batch_size']}, torch {figures['torch']}"
    return [Table(title, ["model", "variant", "ms", "time / plain", "range", "MB", "memory / plain"], rows)]


def picture(results: Results) -> "Figure":
    """Time over plain PyTorch, a panel for each machine and model."""
    cases = [(name, model) for name in results for model in NETWORKS]
    figure, axes = panels(len(results), len(NETWORKS), height=45)
    for one, (name, model) in zip(axes, cases, strict=True):
        rows = [row for row in results[name]["rows"] if row["model"] == model and row["ratio_range"] != [1, 1]]
        bars(one, {row["variant"]: row["ratio"] for row in rows}, f"{model}, {name}", "time / plain PyTorch")
    return figure


OPTIONS = counts(rounds=9, batch_size=256) | {"model": {"choices": list(NETWORKS), "help": "only this one"}}
PROGRAM = Program("clipping", __file__, measure, tables, picture, OPTIONS, build)
