"""What a prediction over draws costs, as a ratio to as many plain forward passes.

    python benchmarks/prediction.py [--draws 20] [--rows 10000] [--rounds 5] [--json FILE]

Both take turns within one run; each figure is the median over rounds of the ratio in the same round. Plain passes run
one network on all rows at once, as often as there are draws. Runs on a GPU if there is one.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import dpbnn
from dpbnn.clipping.objective import Objective
from dpbnn.networks import CNN, MLP
from dpbnn.posterior import DropoutNetwork, MeanField, Posterior, WeightSamples
from dpbnn.predict import predict

NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda dropout: MLP(784, [1200, 1200], 10, dropout=dropout), (784,)),
    "CNN": (lambda dropout: CNN(dropout=dropout), (1, 28, 28)),
    "small MLP": (lambda dropout: MLP(30, [32], 2, dropout=dropout), (30,)),
}


def posteriors(network: nn.Module, draws: int) -> dict[str, Posterior]:
    """Three forms around a network's weights."""
    weights = {name: p.detach() for name, p in network.named_parameters()}
    samples = {name: w + 0.01 * torch.randn(draws, *w.shape, device=w.device) for name, w in weights.items()}
    return {
        "samples": WeightSamples(samples, torch.ones(draws)),
        "mean field": MeanField(weights, {name: torch.full_like(w, 0.01) for name, w in weights.items()}),
        "dropout": DropoutNetwork(weights),
    }


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, draws: int, rows: int, rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Seconds and ratio for each form on one network."""
    make, shape = NETWORKS[name]
    x = torch.randn(rows, *shape, device=device)
    found = {}
    for form in ("samples", "mean field", "dropout"):
        network = make(0.1 if form == "dropout" else 0.0).to(device).eval()
        posterior, objective = posteriors(network, draws)[form], Objective(network, dpbnn.Categorical())

        @torch.no_grad()
        def plainly(network: nn.Module = network) -> None:
            for _ in range(draws):
                network(x).softmax(dim=1)

        def ours(posterior: Posterior = posterior, objective: Objective = objective) -> None:
            predict(objective, posterior, x, draws, seed=0)

        for warm_up in (ours, plainly):
            warm_up()
        description = f"{name}, {form}"
        pairs = [
            (timed(ours, device), timed(plainly, device))
            for _ in track(range(rounds), description=description, console=Console(stderr=True))
        ]
        found[form] = {
            "seconds": round(statistics.median(first for first, _ in pairs), 4),
            "ratio": round(statistics.median(first / second for first, second in pairs), 3),
        }
    return found


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="What a prediction over draws costs beside plain forward passes.")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    settings = {"draws": arguments.draws, "rows": arguments.rows}
    found = {name: measure(name, **settings, rounds=arguments.rounds, device=device) for name in NETWORKS}
    shown = Table("posterior", *(f"{name}, {unit}" for name in found for unit in ("s", "x plain")), title=where)
    for form in ("samples", "mean field", "dropout"):
        shown.add_row(form, *(f"{found[name][form][key]:.3g}" for name in found for key in ("seconds", "ratio")))
    Console().print(shown)
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    results[where] = settings | {"torch": torch.__version__, "networks": found}
    arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
