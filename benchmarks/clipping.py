"""What privacy costs: the clipped gradient and the whole private step beside plain PyTorch and Opacus.

    python benchmarks/clipping.py [--rounds 9] [--batch-size 256] [--json FILE]

All variants take turns within one run, so that a noisy machine disturbs them alike; each figure is the median over
rounds of the ratio to plain PyTorch in the same round. Memory is the peak of a fresh process over what the libraries
take. Opacus is left out if it is not installed (`pip install 'dpbnn[bench]'`).
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import dpbnn
from dpbnn.clipping import check_model, clip_and_sum
from dpbnn.privacy.mechanism import add_noise
from dpbnn.privacy.randomness import Randomness

CLIP_NORM, NOISE, LEARNING_RATE = 1.5, 1.3, 0.25
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: dpbnn.networks.MLP(784, [1200, 1200], 10), (784,)),
    "CNN": (lambda: dpbnn.networks.CNN(), (1, 28, 28)),
}
Step = Callable[[], None]
Variant = Callable[[nn.Module, Tensor, Tensor], Step]


def plain_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """The gradient of the mean loss."""
    parameters = list(model.parameters())
    return lambda: void(torch.autograd.grad(F.cross_entropy(model(x), y), parameters))


def clipped_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """The sum of clipped per-record gradients."""
    checked = check_model(model, dpbnn.Categorical(), x, y)
    weights = checked.objective.model_weights()
    return lambda: void(clip_and_sum(checked, weights, x, y, CLIP_NORM))


def plain_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """The usual three lines of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def private_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Clip, add noise, update: one turn of the loop in `dpbnn.training`."""
    checked = check_model(model, dpbnn.Categorical(), x, y)
    plan = dpbnn.PrivacyPlan(60_000, len(x), 10**6, CLIP_NORM, NOISE, 1e-5)
    method, randomness = dpbnn.SGD(learning_rate=LEARNING_RATE), Randomness.from_operating_system()
    state = method.init(checked.objective.model_weights(), plan, seed=0)
    count = 0

    def step() -> None:
        nonlocal count
        clipped = clip_and_sum(checked, method.weights(state, count), x, y, CLIP_NORM)
        method.update(state, add_noise(clipped, NOISE, randomness, count), count)
        count += 1

    return step


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Opacus with per-sample gradients written out by hooks."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Opacus with ghost clipping: two backward passes."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        optimizer.step()

    return step


VARIANTS: dict[str, tuple[Variant, str]] = {
    "plain gradient": (plain_gradient, "plain gradient"),
    "dpbnn, clipped gradient": (clipped_gradient, "plain gradient"),
    "plain SGD step": (plain_step, "plain SGD step"),
    "dpbnn, whole private step": (private_step, "plain SGD step"),
    "Opacus, ghost step": (opacus_ghost, "plain SGD step"),
    "Opacus, hooks step": (opacus_hooks, "plain SGD step"),
}
"""Each with the variant that it is compared to."""


def void(_: object) -> None:
    """Drop a result."""


def prepare(variant: str, model: str, batch_size: int) -> Step:
    """A step of a variant on its own copy of the model, warmed up."""
    torch.manual_seed(0)
    make, shape = MODELS[model]
    step = VARIANTS[variant][0](make(), torch.randn(batch_size, *shape), torch.randint(10, (batch_size,)))
    step()
    return step


def seconds(step: Step, at_least: float = 0.25) -> float:
    """The time of one step, from as many as fill a quarter of a second."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < at_least or count == 0:
        step()
        count += 1
    return spent / count


def peak_memory(variant: str, model: str, batch_size: int) -> float:
    """Megabytes that a fresh process needs for model, data and steps, on top of the libraries."""
    command = [sys.executable, __file__, "--memory-of", variant, "--model", model, "--batch-size", str(batch_size)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def print_memory(variant: str, model: str, batch_size: int) -> None:
    """What `peak_memory` runs; a first round on two records loads all libraries, the second counts."""
    make, shape = MODELS[model]
    for size in (2, batch_size):
        ctypes.CDLL(None).malloc_trim(0)  # gives back what the first round has left
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        before = memory_in_status("VmRSS")
        step = VARIANTS[variant][0](make(), torch.randn(size, *shape), torch.randint(10, (size,)))
        for _ in range(3):
            step()
        peak = memory_in_status("VmHWM")
        del step
    print((peak - before) / 1024)


def memory_in_status(field: str) -> int:
    """Kilobytes that Linux reports for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(model: str, variants: list[str], rounds: int, batch_size: int) -> list[dict[str, Any]]:
    """All variants in turn, several times over."""
    steps = {variant: prepare(variant, model, batch_size) for variant in variants}
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in track(range(rounds), f"{model}, timing", console=Console(stderr=True)):
        for variant, step in steps.items():
            times[variant].append(seconds(step))
    del steps
    memory = {variant: peak_memory(variant, model, batch_size) for variant in variants}
    rows = []
    for variant in variants:
        base = VARIANTS[variant][1]
        ratios = [mine / plain for mine, plain in zip(times[variant], times[base], strict=True)]
        rows.append(
            {
                "model": model,
                "variant": variant,
                "milliseconds": 1e3 * statistics.median(times[variant]),
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
                "megabytes": memory[variant],
                "memory_ratio": memory[variant] / memory[base],
            }
        )
    return rows


def show(rows: list[dict[str, Any]], batch_size: int) -> None:
    """One table."""
    title = f"batch {batch_size}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    table = Table("model", "variant", "ms", "time / plain", "range", "MB", "memory / plain", title=title)
    for row in rows:
        low, high = row["ratio_range"]
        table.add_row(
            row["model"],
            row["variant"],
            f"{row['milliseconds']:.1f}",
            f"{row['ratio']:.2f}x",
            f"{low:.2f} to {high:.2f}",
            f"{row['megabytes']:.0f}",
            f"{row['memory_ratio']:.2f}x",
        )
    Console().print(table)


def installed_variants() -> list[str]:
    """Opacus is optional."""
    try:
        import opacus  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        print("Opacus is not installed and left out.", file=sys.stderr)
        return [variant for variant in VARIANTS if not variant.startswith("Opacus")]
    return list(VARIANTS)


def main() -> None:
    """Read the options, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook")
    if options.memory_of:
        print_memory(options.memory_of, options.model, options.batch_size)
        return
    variants = installed_variants()
    models = [options.model] if options.model else list(MODELS)
    rows = [row for model in models for row in measure(model, variants, options.rounds, options.batch_size)]
    show(rows, options.batch_size)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
