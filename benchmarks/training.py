"""The paper's training, start to finish, by `dpbnn.fit`, beside loops of plain PyTorch and of Opacus.

    python benchmarks training [--steps 3515] [--rounds 2]

60,000 synthetic images of MNIST's shape, batch 256, clip norm 1.5, all data on the device. The plain loop is not
private and takes shuffled batches. Opacus draws its own Poisson batches; its loops take 100 steps and are scaled up.
What the first call takes beyond a later one is set-up and reported apart. On a GPU dpbnn also runs with
``Execution(precision="tf32")``: the network's products in TF32, everything else as ever. On a CPU all take 100 steps
unless told otherwise, and Opacus' loops 20.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import dpbnn
from dpbnn.methods import Method
from dpbnn.plots.style import panels
from measure import Step, device, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts, positive
from variants import CLIP_NORM, LEARNING_RATE, NETWORKS, NOISE, OPACUS, Network, opacus_is_there, plain_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASET_SIZE, BATCH_SIZE, PAPERS_STEPS, CPU_STEPS = 60_000, 256, 3515, 100
OPACUS_STEPS = {"cuda": 100, "cpu": 20}
PRIOR = dpbnn.Gaussian(0.1)
METHODS: dict[str, Method[Any]] = {
    "DP-SGLD": dpbnn.SGLD(5e-6, PRIOR, temperature=0.5),
    "DP-BBP aligned": dpbnn.BBP(LEARNING_RATE, PRIOR),
    "DP-MC dropout": dpbnn.MCDropout(LEARNING_RATE, PRIOR),
    "DP-SGD": dpbnn.SGD(LEARNING_RATE, PRIOR),
}
PLAIN = "plain PyTorch, not private"


def by_fit(network: Network, label: str, x: Tensor, y: Tensor, steps: int, precision: str | None = None) -> Step:
    """A whole run."""
    execution = dpbnn.Execution(precision=precision)
    model = network.on_device(dropout=0.5 if "dropout" in label else 0.0)
    # SGLD's temperature asks for 1.272; the others take their noise from the plan.
    noise = NOISE if label != "DP-SGLD" else 1.27
    plan = dpbnn.PrivacyPlan(len(x), BATCH_SIZE, steps, CLIP_NORM, noise, 1e-5)
    method, likelihood = METHODS[label], dpbnn.Categorical()

    def run() -> None:
        dpbnn.fit(
            model, x, y, method=method, plan=plan, likelihood=likelihood, execution=execution, seed=0, progress=False
        )

    return run


def by_loop(network: Network, x: Tensor, y: Tensor, steps: int) -> Step:
    """The usual loop."""
    take = plain_step(network.on_device(), x[:BATCH_SIZE], y[:BATCH_SIZE])

    def loop() -> None:
        for chosen in shuffled(len(x), steps):
            take(x[chosen], y[chosen])

    return loop


def shuffled(size: int, steps: int) -> Iterator[Tensor]:
    """Batches without replacement, in an order drawn anew for every pass."""
    order: list[Tensor] = []
    for _ in range(steps):
        if not order:
            order = list(torch.randperm(size, device=device()).split(BATCH_SIZE))
        yield order.pop()


def by_opacus(network: Network, name: str, x: Tensor, y: Tensor, steps: int) -> Step:
    """Opacus' clipping and noise on Opacus' Poisson batches."""
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    take = OPACUS[name](network.on_device(), x[:BATCH_SIZE], y[:BATCH_SIZE])

    def loop() -> None:
        sampler = UniformWithReplacementSampler(num_samples=len(x), sample_rate=BATCH_SIZE / len(x), steps=steps)
        for rows in sampler:
            chosen = torch.tensor(rows, device=x.device)
            take(x[chosen], y[chosen])

    return loop


def runs(network: Network, size: int, steps: int, opacus_steps: int) -> tuple[dict[str, Step], dict[str, int]]:
    """All runs on one network, and how many steps each takes."""
    x, y = network.batch(size)
    found = {PLAIN: by_loop(network, x, y, steps)}
    found |= {label: by_fit(network, label, x, y, steps) for label in METHODS}
    if device() == "cuda":
        found |= {f"{label}, TF32": by_fit(network, label, x, y, steps, "tf32") for label in METHODS}
    lengths = dict.fromkeys(found, steps)
    if opacus_is_there():
        for name in OPACUS:
            found[name], lengths[name] = by_opacus(network, name, x, y, opacus_steps), opacus_steps
    return found, lengths


def measure(options: Options) -> Figures:
    """All runs on each network."""
    steps = options.steps or (PAPERS_STEPS if device() == "cuda" else CPU_STEPS)
    size, rounds, opacus_steps = DATASET_SIZE, options.rounds, OPACUS_STEPS[device()]
    if options.quick:
        steps, size, rounds, opacus_steps = 4, 2000, 1, 1
    rows = []
    for model, network in NETWORKS.items():
        found, lengths = runs(network, size, steps, min(steps, opacus_steps))
        times = take_turns(found, rounds, 0.0, f"{model}, training")
        for name in found:
            scale = steps / lengths[name]
            rows.append(
                {
                    "model": model,
                    "run": name,
                    "seconds": scale * times.median(name),
                    "ratio": scale * sorted(times.ratios(name, PLAIN))[rounds // 2],
                    "set_up_seconds": max(0.0, times.first[name] - times.median(name)),
                    "steps_taken": lengths[name],
                }
            )
    return {"steps": steps, "dataset_size": size, "batch_size": BATCH_SIZE, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = []
    for row in figures["rows"]:
        scaled = "" if row["steps_taken"] == figures["steps"] else f" ({row['steps_taken']} steps, scaled up)"
        times = [f"{row['seconds']:.2f}", f"{row['ratio']:.2f}x", f"{row['set_up_seconds']:.2f}"]
        rows.append([row["model"], row["run"] + scaled, *times])
    title = f"{machine}, {figures['steps']} steps of batch {figures['batch_size']}, torch {figures['torch']}"
    return [Table(title, ["model", "run", "s", "time / plain", "set-up, s"], rows)]


def picture(results: Results) -> "Figure":
    """Seconds, a panel for each machine and network."""
    cases = [(name, model) for name in results for model in NETWORKS]
    figure, axes = panels(len(results), len(NETWORKS), height=50)
    for one, (name, model) in zip(axes, cases, strict=True):
        seconds = {row["run"]: row["seconds"] for row in results[name]["rows"] if row["model"] == model}
        title = f"{model}, {name}, {results[name]['steps']} steps"
        bars(one, seconds, title, "seconds", one=False)
    return figure


PROGRAM = Program("training", __file__, measure, tables, picture, counts(rounds=2) | {"steps": {"type": positive}})
