"""How good the defaults for tables are: beside settings tuned for each table, and beside diffprivlib.

    DPBNN_DATA=FOLDER python benchmarks/tabular.py [--seeds 10] [--only adult pima ...] [--workers 2]
                                                   [--tune | --million | --page]

Every run is kept in tabular.json and not done again; the table of docs/tables.md is made from it (--page does only
that). --tune looks for better settings than the defaults with no regard to what it costs: hidden units and the rate
together, then the clip norm, by the likelihood of rows that are held out of training, over splits that are used for
nothing else. What it finds is kept in tabular_tuned.json. --million times `dpbnn fit` on a synthetic CSV file of
1,000,000 rows and 20 columns.

Ranges of columns are public constants: from the data sets' descriptions, or for UCI's regressions, which are public,
read off the files and rounded outwards. diffprivlib does not work with this scikit-learn and gets an environment of
its own, in .peers.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dpbnn
from dpbnn.privacy.guarantee import Circumstances
from dpbnn.privacy.queries.bounds import Bounds
from dpbnn.tables.settings import Facts
from dpbnn.tables.terms import terms_for
from dpbnn.tables.training import in_units, train

FOLDER = Path(__file__).parent
KEPT, PAGE = FOLDER / "tabular.json", FOLDER.parent / "docs" / "tables.md"
TUNED = FOLDER / "tabular_tuned.json"
PEER = FOLDER.parent / ".peers" / "diffprivlib"
EPSILONS, DELTA = (1.0, 3.0), 1e-5
BEGIN, END = "<!-- tabular -->", "<!-- /tabular -->"
UCI = ("bostonHousing", "energy", "kin8nm", "naval-propulsion-plant", "power-plant", "protein-tertiary-structure",
       "wine-quality-red")  # fmt: skip
NAVAL_TARGET = 16
MILLION = "million rows"
HIDDEN: tuple[list[int], ...] = ([], [32], [64])
RATES, CLIPS = (0.25, 0.5, 1.0, 2.0, 4.0), (1.0, 0.5, 2.0)
"""What is tried: widths, and multiples of the defaults."""
TUNING_SEEDS = range(1000, 1003)


@dataclass(frozen=True)
class Split:
    """Rows from -1 to 1, how many columns they had, and the targets; `span` is that of targets that are numbers."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    columns: int
    span: tuple[float, float] | None = None


def one_hot(column: np.ndarray, values: list[str]) -> np.ndarray:
    """One number for each value."""
    return (column[:, None] == np.array(values)[None, :]).astype(np.float32)


def number(column: np.ndarray, low: float, high: float, log: bool = False) -> np.ndarray:
    """Scaled as a schema would."""
    scaled = Bounds(np.array([low]), np.array([high])).scaled(column.astype(float)[:, None])
    return 2 * np.log1p(1000 * (scaled + 1) / 2) / np.log1p(1000) - 1 if log else scaled


def adult(folder: Path, seed: int) -> Split:
    """Its own split of training and test; the seed changes nothing."""
    described = [line.strip().rstrip(".").split(": ") for line in (folder / "tabular" / "adult.names").open()]
    names = {line[0]: line[1] for line in described if len(line) == 2 and not line[0].startswith("|")}
    ranges = {"age": (17, 90), "education-num": (1, 16), "hours-per-week": (1, 99)}
    logs = {"fnlwgt": (0, 1_500_000), "capital-gain": (0, 100_000), "capital-loss": (0, 5_000)}

    def part(file: str) -> tuple[np.ndarray, np.ndarray]:
        lines = [line for line in (folder / "tabular" / file).open() if line.count(",") == len(names)]
        rows = np.array([[cell.strip().rstrip(".") for cell in line.split(",")] for line in lines])
        parts = []
        for place, (name, kind) in enumerate(names.items()):
            column = rows[:, place]
            if name in ranges or name in logs:
                parts.append(number(column, *(ranges | logs)[name], log=name in logs))
            else:
                parts.append(one_hot(column, [*kind.split(", "), "?"]))
        return np.concatenate(parts, axis=1, dtype=np.float32), (rows[:, -1] == ">50K").astype(np.int64)

    return Split(*part("adult.data"), *part("adult.test"), columns=len(names))


def parted(x: np.ndarray, y: np.ndarray, columns: int, seed: int) -> Split:
    """Four fifths for training."""
    order = np.random.RandomState(seed).permutation(len(x))
    aside, rest = np.split(order, [len(x) // 5])
    return Split(x[rest], y[rest], x[aside], y[aside], columns)


def german(folder: Path, seed: int) -> Split:
    """Codes as its description lists them."""
    rows = np.array([line.strip().split(",") for line in (folder / "tabular" / "german.csv").open()])
    ranges = {1: (4, 72), 4: (250, 20_000), 7: (1, 4), 10: (1, 4), 12: (18, 80), 15: (1, 4), 17: (1, 2)}
    parts = [
        number(rows[:, place], *ranges[place], log=place == 4)
        if place in ranges
        else one_hot(rows[:, place], sorted(set(rows[:, place])))
        for place in range(20)
    ]
    return parted(np.concatenate(parts, axis=1, dtype=np.float32), (rows[:, 20] == "2").astype(np.int64), 20, seed)


def pima(folder: Path, seed: int) -> Split:
    """Eight measurements."""
    rows = np.loadtxt(folder / "tabular" / "pima-indians-diabetes.csv", delimiter=",")
    ranges = [(0, 17), (0, 200), (0, 130), (0, 100), (0, 850), (0, 70), (0, 2.5), (21, 81)]
    x = np.concatenate([number(rows[:, i], *ranges[i]) for i in range(8)], axis=1, dtype=np.float32)
    return parted(x, rows[:, 8].astype(np.int64), 8, seed)


def uci(name: str) -> Callable[[Path, int], Split]:
    """The usual splits: nine tenths for training."""

    def load(folder: Path, seed: int) -> Split:
        rows = np.loadtxt(folder / "uci" / name / "data.txt")
        last = NAVAL_TARGET if name.startswith("naval") else rows.shape[1] - 1
        inputs, targets = rows[:, :last], rows[:, last]
        inputs = inputs[:, np.ptp(inputs, axis=0) > 0]
        scaled = [number(column, *_around(column)) for column in inputs.T]
        span = _around(targets)
        x = np.concatenate(scaled, axis=1, dtype=np.float32)
        y = number(targets, *span).astype(np.float32)
        generator = np.random.RandomState(1)
        for _ in range(seed + 1):
            order = generator.choice(range(len(x)), len(x), replace=False)
        train, test = np.split(order, [round(len(x) * 0.9)])
        return Split(x[train], y[train], x[test], targets[test][:, None], x.shape[1], span)

    return load


def _around(values: np.ndarray) -> tuple[float, float]:
    """Rounded outwards to two digits of the width."""
    low, high = float(values.min()), float(values.max())
    unit = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    return math.floor(low / unit) * unit, math.ceil(high / unit) * unit


SETS: dict[str, Callable[[Path, int], Split]] = {"adult": adult, "german": german, "pima": pima} | {
    name: uci(name) for name in UCI
}


def facts_of(split: Split, epsilon: float, method: str = "sgld") -> Facts:
    """What is public about the rows for training."""
    classes = 2 if split.span is None else None
    return Facts(len(split.x), split.columns, classes, epsilon, DELTA, method)


def ours(
    split: Split, epsilon: float, tuned: Mapping[str, Any] | None, seed: int, method: str = "sgld"
) -> dict[str, float]:
    """By the defaults, or with other hidden units and multiples of the default rate and clip norm."""
    facts = facts_of(split, epsilon, method)
    terms = terms_for(facts)
    if tuned:
        given = {
            "hidden": tuned["hidden"],
            "learning_rate": tuned["rate"] * terms.chosen.learning_rate,
            "clip_norm": tuned["clip"] * terms.chosen.plan.clip_norm,
        }
        terms = terms_for(facts, given)
    release = train(split.x, split.y, terms, terms.ledger(), seed=seed).release(Circumstances("zero_out"))
    prediction: Any = release.predict(split.x_test, seed=seed)
    if split.span is not None:
        prediction = in_units(prediction, *split.span)
    found = dpbnn.metrics.evaluate(prediction, split.y_test)
    wanted = ("rmse", "negative_log_likelihood", "coverage_95") if facts.is_regression else (
        "accuracy", "negative_log_likelihood", "expected_calibration_error")  # fmt: skip
    return {name: round(found[name], 5) for name in wanted} | {"deviation": round(float(split.y_test.std()), 5)}


def held_out(split: Split, seed: int) -> Split:
    """A fifth of the rows for training, to choose settings by; the test rows are not looked at."""
    order = np.random.RandomState(seed).permutation(len(split.x))
    aside, rest = np.split(order, [len(split.x) // 5])
    y_aside = split.y[aside]
    if split.span is not None:
        low, high = split.span
        y_aside = (y_aside + 1) / 2 * (high - low) + low
    return Split(split.x[rest], split.y[rest], split.x[aside], y_aside, split.columns, split.span)


PEERS = """
import sys, json, warnings
warnings.simplefilter("ignore")
import numpy as np
from diffprivlib.models import GaussianNB, LogisticRegression
data = np.load(sys.argv[1]); epsilon, columns = float(sys.argv[2]), int(sys.argv[3])
models = {"LogisticRegression": LogisticRegression(epsilon=epsilon, data_norm=columns ** 0.5, max_iter=1000),
          "GaussianNB": GaussianNB(epsilon=epsilon, bounds=(-1, 1))}
print(json.dumps({name: float(model.fit(data["x"], data["y"]).score(data["x_test"], data["y_test"]))
                  for name, model in models.items()}))
"""


def theirs(split: Split, epsilon: float) -> dict[str, float]:
    """diffprivlib's on the same numbers, with the same public bounds, at the same epsilon (theirs without a delta)."""
    python = PEER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
        packages = ["diffprivlib==0.6.6", "scikit-learn<1.7"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, x=split.x, y=split.y, x_test=split.x_test, y_test=split.y_test)
        file.flush()
        command = [str(python), "-c", PEERS, file.name, str(epsilon), str(split.columns)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


@dataclass(frozen=True)
class Job:
    """One fit: of a data set, by the defaults, by other settings (`way` names them), or by a peer."""

    name: str
    way: str
    epsilon: float
    seed: int
    tuned: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Under which it is kept."""
        return f"{self.name}, {self.way}, {self.epsilon:g}, {self.seed}"

    def done(self, folder: Path) -> dict[str, float]:
        """Its figures on the test rows, or where settings are looked for, on rows that are held out of training."""
        split = SETS[self.name](folder, self.seed)
        if self.way == "diffprivlib":
            return theirs(split, self.epsilon)
        split = split if self.way in ("default", "tuned") else held_out(split, self.seed)
        return ours(split, self.epsilon, self.tuned, self.seed)


def kept_in(file: Path) -> dict[str, Any]:
    """Figures of the runs so far, by the keys of their jobs."""
    return json.loads(file.read_text()) if file.is_file() else {}


def complete(file: Path, jobs: Sequence[Job], folder: Path, workers: int) -> None:
    """Run what is not kept yet, one thread to each worker, and keep it."""
    kept = kept_in(file)
    left = [job for job in jobs if job.key not in kept]
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        running = {pool.submit(job.done, folder): job for job in left}
        for future in as_completed(running):
            job = running[future]
            kept[job.key] = future.result()
            print(job.key, kept[job.key], flush=True)
            file.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n")


def tune(names: list[str], folder: Path, workers: int) -> None:
    """All of the grid at the default clip norm, then other clip norms for the best of it."""
    complete(TUNED, list(_tuning(names, CLIPS[:1])), folder, workers)
    best = {(name, epsilon): best_settings(kept_in(TUNED), name, epsilon) for name in names for epsilon in EPSILONS}
    others = [
        job
        for job in _tuning(names, CLIPS[1:])
        if (chosen := best[job.name, job.epsilon]) and job.tuned and chosen | {"clip": job.tuned["clip"]} == job.tuned
    ]
    complete(TUNED, others, folder, workers)


def _tuning(names: list[str], clips: Sequence[float]) -> Iterator[Job]:
    for name, epsilon, seed in product(names, EPSILONS, TUNING_SEEDS):
        for hidden, rate, clip in product(HIDDEN, RATES, clips):
            way = f"{hidden} x{rate:g} clip x{clip:g}"
            yield Job(name, way, epsilon, seed, {"hidden": hidden, "rate": rate, "clip": clip})


def best_settings(kept: Mapping[str, Any], name: str, epsilon: float) -> dict[str, Any] | None:
    """By the mean over splits, of those settings that were tried on all."""
    losses: dict[str, list[float]] = {}
    ways: dict[str, Any] = {}
    for job in _tuning([name], CLIPS):
        if job.epsilon == epsilon and job.key in kept:
            losses.setdefault(job.way, []).append(kept[job.key]["negative_log_likelihood"])
            ways[job.way] = job.tuned
    means = {way: statistics.mean(each) for way, each in losses.items() if len(each) == len(TUNING_SEEDS)}
    return ways[min(means, key=lambda way: means[way])] if means else None


def run(names: list[str], seeds: int, folder: Path, workers: int) -> None:
    """Defaults, the best settings that were found, and peers."""
    tried = kept_in(TUNED)
    jobs = []
    for name, epsilon in product(names, EPSILONS):
        tuned = best_settings(tried, name, epsilon)
        for seed in range(seeds):
            jobs.append(Job(name, "default", epsilon, seed))
            if tuned:
                jobs.append(Job(name, "tuned", epsilon, seed, tuned))
            if name not in UCI:
                jobs.append(Job(name, "diffprivlib", epsilon, seed))
    complete(KEPT, jobs, folder, workers)


def million() -> None:
    """Seconds and memory of the whole command, reading the file included."""
    rows, columns = 1_000_000, 20
    generator = np.random.default_rng(0)
    x, slopes = generator.normal(size=(rows, columns)), generator.normal(size=columns)
    y = np.where(x @ slopes + generator.normal(size=rows) > 0, "yes", "no")
    numbers = "".join(f'[columns.c{i}]\ntype = "number"\nlow = -4\nhigh = 4\n' for i in range(columns))
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "data.csv").open("w") as file:
            file.write(",".join(f"c{i}" for i in range(columns)) + ",y\n")
            file.writelines(
                ",".join(f"{value:.4f}" for value in row) + f",{label}\n" for row, label in zip(x, y, strict=True)
            )
        Path(folder, "schema.toml").write_text(
            f'target = "y"\n{numbers}[columns.y]\ntype = "category"\nvalues = ["no", "yes"]\n'
        )
        command = [sys.executable, "-m", "dpbnn", "fit", "data.csv", "--schema", "schema.toml"]
        start = time.perf_counter()
        subprocess.run([*command, "--epsilon", "1", "--out", "model", "--quiet"], check=True, cwd=folder)
        seconds = time.perf_counter() - start
    gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    found = {"seconds": round(seconds), "gigabytes": round(gigabytes, 2), "cores": os.cpu_count()}
    print(MILLION, found)
    KEPT.write_text(json.dumps(dict(sorted((kept_in(KEPT) | {MILLION: found}).items())), indent=0) + "\n")


def _median(kept: dict[str, Any], name: str, way: str, epsilon: float, figure: str) -> float | None:
    found = [figures[figure] for key, figures in kept.items() if key.startswith(f"{name}, {way}, {epsilon:g}, ")]
    return statistics.median(found) if found else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def tables(kept: dict[str, Any]) -> str:
    """The tables of classes and of numbers, as Markdown."""
    classes = [
        "| classes | epsilon | accuracy | tuned | LogisticRegression | GaussianNB | NLL | tuned | ECE |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    reals = [
        "| numbers | epsilon | RMSE / deviation | tuned | NLL | tuned | coverage of 95 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in SETS:
        for epsilon in EPSILONS:

            def of(way: str, figure: str, name: str = name, epsilon: float = epsilon) -> float | None:
                return _median(kept, name, way, epsilon, figure)

            nll = [_cell(of(way, "negative_log_likelihood")) for way in ("default", "tuned")]
            if name in UCI:
                scale, errors = of("default", "deviation"), [of(way, "rmse") for way in ("default", "tuned")]
                errors = [error and scale and error / scale for error in errors]
                cells = [*map(_cell, errors), *nll, _cell(of("default", "coverage_95"))]
                reals.append(f"| {name} | {epsilon:g} | {' | '.join(cells)} |")
            else:
                right = [_cell(of(way, "accuracy")) for way in ("default", "tuned")]
                peers = [_cell(of("diffprivlib", peer)) for peer in ("LogisticRegression", "GaussianNB")]
                cells = [*right, *peers, *nll, _cell(of("default", "expected_calibration_error"))]
                classes.append(f"| {name} | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join([*classes, "", *reals])


def filled(page: str, kept: dict[str, Any]) -> str:
    """The page with the tables of what is kept."""
    before, rest = page.split(BEGIN)
    time_and_memory = "{seconds} s and {gigabytes} GB on {cores} cores".format_map(kept[MILLION])
    last = f"`dpbnn fit` on a CSV file of 1,000,000 rows and 20 columns at epsilon 1: {time_and_memory}."
    return f"{before}{BEGIN}\n\n{tables(kept)}\n\n{last}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Run, and fill in the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
    if options.tune:
        tune(options.only, Path(os.environ["DPBNN_DATA"]), options.workers)
    elif options.million:
        million()
    elif not options.page:
        run(options.only, options.seeds, Path(os.environ["DPBNN_DATA"]), options.workers)
    PAGE.write_text(filled(PAGE.read_text(), kept_in(KEPT)))


if __name__ == "__main__":
    main()
