"""Accuracy of the private methods on MNIST, all at the same epsilon (0.894 by PLD, delta 1e-5) and 15 epochs.

    DPBNN_DATA=FOLDER python benchmarks/mnist.py [--seeds 5] [--only mlp/sgld ...] [--workers 4] [--json FILE]

FOLDER holds ``mnist/*.gz`` as published. Every setting runs with `--seeds` initialisations and fresh noise; medians are
printed beside the paper's figure. Finished runs are in the JSON file and are not run again, so that an interrupted
command continues. Runs share a GPU if there is one; on two CPU cores one of the MLP takes some three minutes.

Accuracy is measured on MNIST's public test images, and the settings were chosen by it: on private data, choosing would
have to be paid for.
"""

import argparse
import gzip
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import dpbnn
from dpbnn import metrics
from dpbnn.methods import Method
from dpbnn.networks import CNN, MLP

EPSILON, DELTA, EPOCHS, SIZE = 0.894, 1e-5, 15, 60_000
MEAN, DEVIATION = 0.1307, 0.3081
"""Public constants: of the published training images, known since 1998."""
PRIOR = dpbnn.Gaussian(0.1)


@dataclass(frozen=True)
class Setting:
    """One line of the table."""

    network: Callable[[], nn.Module]
    method: Method[Any]
    asked: str
    paper: str
    batch_size: int = 256
    clip_norm: float = 1.5
    clipping: str = "flat"
    standardized: bool = True

    def plan(self) -> dpbnn.PrivacyPlan:
        """The least noise within the budget."""
        return dpbnn.PrivacyPlan.for_budget(
            epsilon=EPSILON,
            delta=DELTA,
            dataset_size=SIZE,
            batch_size=self.batch_size,
            steps=EPOCHS * SIZE // self.batch_size,
            clip_norm=self.clip_norm,
            clipping=self.clipping,
        )


def paper_mlp(dropout: float = 0.0, activation: str = "relu") -> MLP:
    """784-1200-1200-10."""
    return MLP(784, [1200, 1200], 10, dropout=dropout, activation=activation)


LARGE: Any = {"batch_size": 1024, "clip_norm": 1.0}
"""Larger batches than the paper's, at the same epsilon and in the same number of epochs."""
TANH = partial(CNN, activation="tanh")
SETTINGS = {
    "mlp/sgld, paper's setting": Setting(paper_mlp, dpbnn.SGLD(5e-6, PRIOR, temperature=0.5), "0.905", "0.90"),
    "mlp/sgld, paper's setting, summarised": Setting(
        paper_mlp, dpbnn.SGLD(5e-6, PRIOR, temperature=0.5, keep_as=dpbnn.KeepSummary(rank=20)), "-", "-"
    ),
    "mlp/bbp, paper's rate": Setting(paper_mlp, dpbnn.BBP(0.25, PRIOR), "-", "0.80"),
    "mlp/bbp": Setting(paper_mlp, dpbnn.BBP(0.7, PRIOR), "0.905", "0.80", **LARGE),
    "mlp/mc dropout, paper's setting, raw pixels": Setting(
        partial(paper_mlp, 0.5),
        dpbnn.MCDropout(2e-4, PRIOR, optimizer="Adam"),
        "about 0.79",
        "0.78",
        standardized=False,
    ),
    "mlp/mc dropout, paper's setting": Setting(
        partial(paper_mlp, 0.5), dpbnn.MCDropout(2e-4, PRIOR, optimizer="Adam"), "-", "0.78"
    ),
    "mlp/mc dropout": Setting(partial(paper_mlp, 0.1), dpbnn.MCDropout(0.7, PRIOR), "0.90", "0.78", **LARGE),
    "mlp/sgd, paper's rate": Setting(paper_mlp, dpbnn.SGD(0.25), "-", "0.77"),
    "mlp/sgd": Setting(paper_mlp, dpbnn.SGD(0.7), "0.915", "0.77", **LARGE),
    "cnn/sgld, paper's setting": Setting(CNN, dpbnn.SGLD(5e-6, PRIOR, temperature=0.5), "0.95", "0.95"),
    "cnn/bbp, paper's network": Setting(CNN, dpbnn.BBP(0.25, PRIOR, initial_std=0.2), "0.95", "-"),
    "cnn/bbp, tanh": Setting(TANH, dpbnn.BBP(1.0, PRIOR), "0.95", "-", **LARGE),
    "cnn/mc dropout, paper's network": Setting(
        partial(CNN, dropout=0.1), dpbnn.MCDropout(1.0, PRIOR), "0.95", "0.77", **LARGE
    ),
    "cnn/mc dropout, tanh": Setting(partial(TANH, dropout=0.1), dpbnn.MCDropout(1.0, PRIOR), "0.95", "0.77", **LARGE),
    "cnn/sgd, tanh": Setting(TANH, dpbnn.SGD(1.0, PRIOR), "-", "0.95", **LARGE),
}


def read_mnist(folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels."""

    def read(name: str, header: int) -> torch.Tensor:
        with gzip.open(folder / name) as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=header).copy())

    parts = []
    for part in ("train", "t10k"):
        images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).float()
        parts += [images / 255, read(f"{part}-labels-idx1-ubyte.gz", 8).long()]
    return parts[0], parts[1], parts[2], parts[3]


def run(name: str, seed: int, folder: str, device: str) -> dict[str, Any]:
    """One training run and its figures on the test images."""
    setting = SETTINGS[name]
    X, y, X_test, y_test = (part.to(device) for part in read_mnist(Path(folder)))
    if setting.standardized:
        X, X_test = ((images - MEAN) / DEVIATION for images in (X, X_test))
    torch.manual_seed(seed)
    network = setting.network().to(device)
    plan = setting.plan()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
        release = dpbnn.fit(
            network, X, y, method=setting.method, plan=plan, likelihood=dpbnn.Categorical(), seed=seed, progress=False
        )
    seconds = time.perf_counter() - start
    prediction = release.predict(X_test, num_draws=100, seed=seed)
    figures = metrics.evaluate(prediction, y_test.cpu())
    return {
        "setting": name,
        "seed": seed,
        "epsilon": release.guarantee.epsilon,
        "seconds": round(seconds, 2),
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads",
        "release": {key: release.settings.get(key) for key in ("temperature", "effective_sample_size")},
        **{key: round(value, 5) for key, value in figures.items() if isinstance(value, float)},
    }


def table(results: list[dict[str, Any]]) -> Table:
    """Medians over the seeds."""
    shown = Table("setting", "seeds", "accuracy", "from - to", "asked", "paper", "ECE", "NLL", "epsilon", "seconds")
    for name, setting in SETTINGS.items():
        own = [result for result in results if result["setting"] == name]
        if own:
            accuracies = [result["accuracy"] for result in own]
            middle = {key: statistics.median(r[key] for r in own) for key in own[0] if isinstance(own[0][key], float)}
            shown.add_row(
                name,
                str(len(own)),
                f"{middle['accuracy']:.4f}",
                f"{min(accuracies):.4f} - {max(accuracies):.4f}",
                setting.asked,
                setting.paper,
                f"{middle['expected_calibration_error']:.4f}",
                f"{middle['negative_log_likelihood']:.4f}",
                f"{middle['epsilon']:.4f}",
                f"{middle['seconds']:.1f}",
            )
    return shown


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Accuracy of the private methods on MNIST at epsilon 0.894.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="settings whose names start with one of these")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    folder = Path(os.environ.get("DPBNN_DATA", "data")) / "mnist"
    if not folder.is_dir():
        parser.error(f"MNIST must be in {folder}; set DPBNN_DATA to the folder that holds mnist/*.gz.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
    done = {(result["setting"], result["seed"]) for result in results}
    chosen = [name for name in SETTINGS if not arguments.only or name.startswith(tuple(arguments.only))]
    left = [(name, seed) for seed in range(arguments.seeds) for name in chosen if (name, seed) not in done]
    pool = ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn"))
    with pool, Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("runs", total=len(left))
        for future in as_completed([pool.submit(run, name, seed, str(folder), device) for name, seed in left]):
            results.append(future.result())
            arguments.json.write_text(json.dumps(sorted(results, key=lambda r: (r["setting"], r["seed"])), indent=1))
            bar.advance(task)
    Console(width=140).print(table(results))


if __name__ == "__main__":
    main()
