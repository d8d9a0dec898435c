"""What a step of each method costs, as a ratio to a DP-SGD step.

    python benchmarks/methods.py [--rounds 9] [--batch-size 256] [--json FILE]

All methods take turns within one run, so that a noisy machine disturbs them alike; each figure is the median over
rounds of the ratio to DP-SGD in the same round. A step is what `dpbnn.fit` does between two batches: weights, clipped
sum, noise, update, keep. Runs on a GPU if there is one.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import dpbnn
from dpbnn.clipping import check_model, clip_and_sum
from dpbnn.methods import Method
from dpbnn.privacy.mechanism import add_noise
from dpbnn.privacy.randomness import Randomness

CLIP_NORM, NOISE, RATE, STEPS = 1.5, 1.3, 0.25, 100_000
PRIOR = dpbnn.Gaussian(0.1)
NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda dropout: dpbnn.networks.MLP(784, [1200, 1200], 10, dropout=dropout), (784,)),
    "CNN": (lambda dropout: dpbnn.networks.CNN(dropout=dropout), (1, 28, 28)),
}
METHODS: dict[str, Method[Any]] = {
    "SGD": dpbnn.SGD(RATE, PRIOR),
    "SGLD": dpbnn.SGLD(RATE / 60_000, PRIOR),
    "BBP aligned": dpbnn.BBP(RATE, PRIOR),
    "BBP joint, 1 draw": dpbnn.BBP(RATE, PRIOR, form="joint"),
    "BBP joint, 4 draws": dpbnn.BBP(RATE, PRIOR, form="joint", num_draws=4),
    "MC dropout": dpbnn.MCDropout(RATE, PRIOR),
}


def stepper(method: Method[Any], network: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One turn of the loop in `dpbnn.training`, again and again."""
    checked = check_model(method.model_for(network), dpbnn.Categorical(), x, y)
    plan = dpbnn.PrivacyPlan(60_000, len(x), STEPS, CLIP_NORM, NOISE, 1e-5)
    state = method.init(checked.objective.model_weights(), plan, seed=0)
    randomness, step = Randomness.from_operating_system(), 0

    def take() -> None:
        nonlocal state, step
        clipped = clip_and_sum(checked, method.weights(state, step), x, y, CLIP_NORM)
        state = method.keep(method.update(state, add_noise(clipped, NOISE, randomness, step), step), step)
        step += 1

    return take


def timed(step: Callable[[], None], device: str, repeats: int = 8) -> float:
    """Seconds a step."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def measure(name: str, batch_size: int, rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Milliseconds and ratio of each method on one network."""
    make, shape = NETWORKS[name]
    x, y = torch.randn(batch_size, *shape, device=device), torch.randint(10, (batch_size,), device=device)
    steps = {
        label: stepper(method, make(0.5 if label == "MC dropout" else 0.0).to(device), x, y)
        for label, method in METHODS.items()
    }
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for _ in track(range(rounds), description=name, console=Console(stderr=True)):
        for label, step in steps.items():
            seconds[label].append(timed(step, device))
    return {
        label: {
            "milliseconds": round(1e3 * statistics.median(own), 2),
            "ratio": round(statistics.median(a / b for a, b in zip(own, seconds["SGD"], strict=True)), 3),
        }
        for label, own in seconds.items()
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="What a step of each method costs beside DP-SGD.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    found = {name: measure(name, arguments.batch_size, arguments.rounds, device) for name in NETWORKS}
    shown = Table("method", *(f"{name}, {unit}" for name in NETWORKS for unit in ("ms", "x SGD")), title=where)
    for label in METHODS:
        cells = [f"{found[name][label][key]:.2f}" for name in NETWORKS for key in ("milliseconds", "ratio")]
        shown.add_row(label, *cells)
    Console().print(shown)
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    results[where] = {"torch": torch.__version__, "batch_size": arguments.batch_size, "steps": found}
    arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
