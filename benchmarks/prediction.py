"""What a prediction over draws costs, as a ratio to as many plain forward passes.

    python benchmarks prediction [--draws 10] [--rows 5000] [--rounds 5]

Plain passes run one network on all rows at once, as often as there are draws, with masks where the posterior has them.
On a GPU 100 draws for 10,000 images are timed as well, in the default precision and with ``precision="tf32"`` and
``"bfloat16"``. On networks as small as the last one, the entropy of each draw costs as much as its pass.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

import dpbnn
from dpbnn.clipping.objective import Objective
from dpbnn.plots.style import panels
from dpbnn.posterior import DropoutNetwork, MeanField, Posterior, WeightSamples
from dpbnn.prediction.predict import predict
from measure import Step, device, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts
from variants import NETWORKS as PAPERS
from variants import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def small_mlp(dropout: float = 0.0) -> nn.Module:
    """A network whose passes take no time."""
    return dpbnn.networks.MLP(30, [32], 2, dropout=dropout)


NETWORKS = PAPERS | {"small MLP": Network(small_mlp, (30,))}
DEVICE_DRAWS, DEVICE_ROWS = 100, 10_000


def samples(weights: dict[str, torch.Tensor], draws: int) -> Posterior:
    """Kept weights."""
    spread = {name: w + 0.01 * torch.randn(draws, *w.shape, device=w.device) for name, w in weights.items()}
    return WeightSamples(spread, torch.ones(draws))


FORMS: dict[str, Callable[[dict[str, torch.Tensor], int], Posterior]] = {
    "samples": samples,
    "mean field": lambda weights, draws: MeanField(weights, {k: torch.full_like(w, 0.01) for k, w in weights.items()}),
    "dropout": lambda weights, draws: DropoutNetwork(weights),
}


def prepare(name: str, form: str, draws: int, rows: int) -> dict[str, Step]:
    """The same prediction in all ways."""
    x, _ = NETWORKS[name].batch(rows)
    network = NETWORKS[name].on_device(dropout=0.1 if form == "dropout" else 0.0).eval()
    weights = {key: p.detach() for key, p in network.named_parameters()}
    posterior, objective = FORMS[form](weights, draws), Objective(network, dpbnn.Categorical())

    @torch.no_grad()
    def plainly() -> None:
        network.train(form == "dropout")
        for _ in range(draws):
            network(x).softmax(dim=1)

    ways: dict[str, Step] = {"plain": plainly, "dpbnn": lambda: predict(objective, posterior, x, draws, seed=0)}
    for precision in ("tf32", "bfloat16") if device() == "cuda" else ():
        ways[f"dpbnn, {precision}"] = partial(predict, objective, posterior, x, draws, seed=0, precision=precision)
    return ways


def measure(options: Options) -> Figures:
    """All forms on each network."""
    sizes = [(2, 20)] if options.quick else [(options.draws, options.rows)]
    if device() == "cuda" and not options.quick:
        sizes.append((DEVICE_DRAWS, DEVICE_ROWS))
    rounds, at_least = (1, 0.0) if options.quick else (options.rounds, 0.25)
    rows = []
    for draws, records in sizes:
        for name, form in ((name, form) for name in NETWORKS for form in FORMS):
            ways = prepare(name, form, draws, records)
            times = take_turns(ways, rounds, at_least, f"{name}, {form}")
            case = {"network": name, "posterior": form, "draws": draws, "records": records}
            rows += [case | {"way": way} | times.beside(way, "plain") for way in ways if way != "plain"]
    return {"rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """A table for each size."""
    found = []
    for draws, records in sorted({(row["draws"], row["records"]) for row in figures["rows"]}):
        rows = [row for row in figures["rows"] if (row["draws"], row["records"]) == (draws, records)]
        cells = [
            [row["network"], row["posterior"], row["way"], f"{row['milliseconds']:.1f}", f"{row['ratio']:.2f}x"]
            for row in rows
        ]
        title = f"{machine}, {draws} draws of {records} rows, torch {figures['torch']}"
        found.append(Table(title, ["network", "posterior", "way", "ms", "time / plain passes"], cells))
    return found


def picture(results: Results) -> "Figure":
    """Time over plain passes, a panel for each machine and network; of several sizes the largest."""
    cases = [(name, network) for name in results for network in NETWORKS]
    figure, axes = panels(len(results), len(NETWORKS), height=45)
    for one, (name, network) in zip(axes, cases, strict=True):
        of_network = [row for row in results[name]["rows"] if row["network"] == network]
        largest = max(row["draws"] for row in of_network)
        ratios = {
            row["posterior"] + row["way"].removeprefix("dpbnn"): row["ratio"]
            for row in of_network
            if row["draws"] == largest
        }
        bars(one, ratios, f"{network}\n{name}", "time / plain passes")
    return figure


PROGRAM = Program("prediction", __file__, measure, tables, picture, counts(draws=10, rows=5000, rounds=5))
