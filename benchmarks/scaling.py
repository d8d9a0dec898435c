"""How time and memory grow: a step with batch, width and sequence; keeping with samples; prediction with draws.

    python benchmarks scaling [--rounds 5] [--only width]

Each curve's slope in log-log scale is fitted over its upper half, where fixed costs matter less, and shown beside what
theory says of large sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

import dpbnn
from dpbnn.clipping.objective import Objective
from dpbnn.methods.store import Keeping
from dpbnn.plots.style import panels
from dpbnn.posterior import MeanField
from dpbnn.prediction.predict import predict
from large import Sequences
from large_networks import LanguageModel, NextToken
from measure import Build, Step, device, take_turns
from pictures import COLOURS
from program import Figures, Options, Program, Results, Table, counts
from variants import NETWORKS, Network, Variant, plain_step, private_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ON_GPU = device() == "cuda"


def of_batch(variant: Variant, size: int) -> Step:
    """A step of the paper's MLP on more records."""
    return NETWORKS["MLP"].step(variant, size)


def of_width(variant: Variant, width: int) -> Step:
    """A step of a wider MLP, batch 256."""
    return Network(lambda: dpbnn.networks.MLP(784, [width, width], 10), (784,)).step(variant, 256)


def of_sequence(variant: Variant, sequence: int) -> Step:
    """A step of a small language model on longer sequences, batch 8."""
    make = partial(LanguageModel, sequence, vocabulary=1000, width=512 if ON_GPU else 128, depth=2, heads=4)
    return Sequences(make, (sequence,), 1000).step(variant, 8)


def of_kept(keep_as: Callable[[int], Keeping], count: int) -> Step:
    """Keep that many iterates of a 784-200-10 network, one after another."""
    weights = {name: p.detach() for name, p in dpbnn.networks.MLP(784, [200], 10).to(device()).named_parameters()}

    def keep() -> None:
        store = keep_as(count).open(weights, count)
        for step in range(count):
            store.keep(step, weights, 1.0)

    return keep


def of_draws(draws: int) -> Step:
    """Predict 1000 rows by the paper's MLP with more draws of its weights."""
    x, _ = NETWORKS["MLP"].batch(1000)
    model = NETWORKS["MLP"].on_device()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    posterior = MeanField(weights, {name: torch.full_like(w, 0.01) for name, w in weights.items()})
    objective = Objective(model, dpbnn.Categorical())
    return lambda: predict(objective, posterior, x, draws, seed=0)


@dataclass(frozen=True)
class Growth:
    """What grows, over which sizes, and what theory says of the slope of (time, memory)."""

    builds: dict[str, Build]
    sizes: list[int]
    theory: tuple[str, str]


def doubled(first: int, count: int) -> list[int]:
    """Each twice the one before."""
    return [first * 2**power for power in range(count)]


steps: dict[str, Variant] = {"plain": plain_step, "private": private_step}
in_sequence: dict[str, Variant] = {"plain": plain_step, "private": partial(private_step, likelihood=NextToken())}
keepings: dict[str, Callable[[int], Keeping]] = {
    "samples": lambda count: dpbnn.KeepSamples(burn_in=0, thin=1, max_samples=count, max_bytes=2**36),
    "summary": lambda count: dpbnn.KeepSummary(burn_in=0, thin=1),
}
GROWTHS = {
    "batch size": Growth(
        {name: partial(of_batch, variant) for name, variant in steps.items()},
        doubled(512, 7) if ON_GPU else doubled(64, 6),
        ("1", "up to 1"),
    ),
    "width": Growth(
        {name: partial(of_width, variant) for name, variant in steps.items()},
        doubled(512, 6) if ON_GPU else doubled(128, 5),
        ("2", "up to 2"),
    ),
    "sequence length": Growth(
        {name: partial(of_sequence, variant) for name, variant in in_sequence.items()},
        doubled(128, 6) if ON_GPU else doubled(64, 5),
        ("1 to 2", "1 to 2"),
    ),
    "kept samples": Growth(
        {name: partial(of_kept, keep_as) for name, keep_as in keepings.items()},
        doubled(32, 5),
        ("1", "1 (summary: 0)"),
    ),
    "draws": Growth({"prediction": of_draws}, doubled(16, 5) if ON_GPU else doubled(4, 5), ("1", "0")),
}


def slope(sizes: list[int], values: list[float]) -> float:
    """In log-log scale, over the upper half."""
    upper = min(len(sizes) // 2, len(sizes) - 2)
    return float(np.polyfit(np.log(sizes[upper:]), np.log(np.maximum(values[upper:], 1e-9)), 1)[0])


def build(case: str, options: Options) -> Build:
    """For the peak of memory: "what grows/variant"."""
    name, variant = case.split("/")
    return GROWTHS[name].builds[variant]


def measure(options: Options) -> Figures:
    """Everything that grows."""
    rows = []
    for name, growth in GROWTHS.items():
        if options.only not in (None, name):
            continue
        sizes = growth.sizes[:2] if options.quick else growth.sizes
        cases = {f"{variant}/{size}": (variant, size) for variant in growth.builds for size in sizes}
        calls = {case: growth.builds[variant](size) for case, (variant, size) in cases.items()}
        times = take_turns(calls, 1 if options.quick else options.rounds, 0.0 if options.quick else 0.1, name)
        del calls
        for variant in growth.builds:
            seconds = [times.median(f"{variant}/{size}") for size in sizes]
            row: dict[str, object] = {
                "grows": name,
                "variant": variant,
                "sizes": sizes,
                "milliseconds": [1e3 * s for s in seconds],
            }
            row |= {"slope": slope(sizes, seconds), "theory": growth.theory}
            if not options.quick:
                memory = [PROGRAM.peak(f"{name}/{variant}", size, options) for size in sizes]
                row |= {"megabytes": memory, "memory_slope": slope(sizes, memory)}
            rows.append(row)
    return {"rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = []
    for row in figures["rows"]:
        memory = f"{row['memory_slope']:.2f}" if "memory_slope" in row else "-"
        sizes, largest = f"{row['sizes'][0]} to {row['sizes'][-1]}", f"{row['milliseconds'][-1]:.1f}"
        slopes = [f"{row['slope']:.2f}", row["theory"][0], memory, row["theory"][1]]
        rows.append([row["grows"], row["variant"], sizes, largest, *slopes])
    columns = ["grows", "what", "from, to", "ms at the largest", "slope of time", "theory", "slope of memory", "theory"]
    return [Table(f"{machine}, torch {figures['torch']}", columns, rows)]


ALMOST_FLAT = 3


def picture(results: Results) -> "Figure":
    """A column for each thing that grows; time and memory of each machine below each other."""
    figure, axes = panels(2 * len(results), len(GROWTHS), width=240, height=45)
    for position, (machine, figures) in enumerate(results.items()):
        for column, name in enumerate(GROWTHS):
            for part, (key, unit) in enumerate((("milliseconds", "ms"), ("megabytes", "MB"))):
                one = axes[(2 * position + part) * len(GROWTHS) + column]
                rows = [row for row in figures["rows"] if row["grows"] == name and key in row]
                for number, row in enumerate(rows):
                    found = row["slope"] if part == 0 else row["memory_slope"]
                    label = f"{row['variant']}, slope {found:.2f}"
                    style = ("-o", "--s")[number % 2]
                    one.plot(row["sizes"], row[key], style, color=COLOURS[number], label=label, markersize=3)
                one.set_xscale("log", base=2)
                one.set_yscale("log")
                one.yaxis.set_minor_formatter("")
                one.set_xlabel(name)
                one.set_ylabel(f"{machine}\n{unit}" if column == 0 else unit)
                if rows:
                    every = [value for row in rows for value in row[key]]
                    if max(every) < ALMOST_FLAT * min(every):  # or else it would look like a steep curve
                        one.set_ylim(min(every) / ALMOST_FLAT, max(every) * ALMOST_FLAT)
                    one.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=6.5)
    return figure


OPTIONS = counts(rounds=5) | {"only": {"choices": list(GROWTHS), "help": "only this"}}
PROGRAM = Program("scaling", __file__, measure, tables, picture, OPTIONS, build)
