"""How the best settings were found: candidates trained on five sixths of MNIST's training images, tried on the rest.

The test images have no part in it. Every candidate keeps the budget, at the sampling rate and number of steps that it
has on all images. The one with the least negative log-likelihood wins: a score that wants both accuracy and
calibration. On private data all of this would have to be paid for.
"""

import statistics
from dataclasses import asdict
from itertools import product
from typing import Any

import dpbnn
from dpbnn import metrics
from dpbnn.data import Images
from dpbnn.experiments.item import Item, Outcome, Results, Size, each, first
from dpbnn.experiments.pictures import MARKS, Figure, titled
from dpbnn.experiments.settings import BATCH_SHARE, EPOCHS, METHODS, NETWORKS, Recipe, networks_of
from dpbnn.experiments.training import SeededRun, images, rounded
from dpbnn.experiments.words import METHOD, NETWORK, markdown, number, table_of
from dpbnn.plots import style

__all__ = ["ITEM", "candidates", "winner"]

SEEDS = 2
FIGURES = {"accuracy": "accuracy", "negative_log_likelihood": "NLL", "expected_calibration_error": "ECE"}


class HeldOutTrial(SeededRun):
    """A candidate, judged on the training images that it has not seen; a job."""

    purpose, depends_on = "trial", ("draws",)

    def data(self, device: str) -> Images:
        """Training images alone; the last of them judge the candidate."""
        data, records = images("mnist", self.size, device), self.setting.records
        return Images("mnist", data.x[:records], data.y[:records], data.x[records:], data.y[records:])

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """The figures on the images for judging, and epsilon."""
        prediction: Any = release.predict(data.x_test, num_draws=self.size.draws, seed=self.seed)
        if not prediction.probabilities.isfinite().all():
            raise dpbnn.DpbnnError(f"{self.key} has diverged; take it out of the candidates.")
        figures = metrics.evaluate(prediction, data.y_test.cpu())
        return {"epsilon": release.guarantee.epsilon, **rounded({name: figures[name] for name in FIGURES})}


def candidates(network: str, method: str, size: Size) -> list[Recipe]:
    """All candidates, or the first few of them."""
    norms: tuple[float, ...]
    if method == "sgld":
        norms = (1.5, 2.0, 3.0) if network == "cnn" else (2.0, 3.0, 4.0)
        recipes = [Recipe(network, method, norm, prior) for norm, prior in product(norms, (0.1, 0.2))]
    else:
        norms, strengths = ((1.5, 3.0), (1.5, 3.0)) if network == "cnn" else ((2.0, 4.0), (1.0, 1.5))
        shares = (0.05, 0.1) if method == "mc_dropout" else (0.0,)
        recipes = [
            Recipe(network, method, norm, prior, strength / norm, dropout)
            for norm, strength, prior, dropout in product(norms, strengths, (0.1, 0.2), shares)
        ]
    return recipes if size.is_full else recipes[: size.grid]


def _template(size: Size) -> Results:
    """A row for each candidate; one network is enough to see that it works."""
    rows = []
    records, seeds = size.records * 5 // 6, min(SEEDS, size.seeds)
    for network, method in product(networks_of(size), METHODS):
        for recipe in candidates(network, method, size):
            setting = recipe.at("mnist", size, records)
            runs = HeldOutTrial.of(setting, size, seeds)
            row = {"recipe": asdict(recipe), "settings": setting.to_json(), "epsilon": first(runs, "epsilon")}
            rows.append(row | {name: each(runs, name) for name in FIGURES})
    return {"trained_on": records, "tried_on": size.records - records, "seeds": list(range(seeds)), "rows": rows}


def _groups(results: Results) -> dict[tuple[str, str], list[Results]]:
    """The rows of each network and method that was tuned."""
    groups: dict[tuple[str, str], list[Results]] = {}
    for row in results["rows"]:
        groups.setdefault((row["recipe"]["network"], row["recipe"]["method"]), []).append(row)
    return groups


def _score(row: Results) -> float:
    return statistics.mean(row["negative_log_likelihood"])


def winner(results: Results, network: str, method: str) -> Recipe:
    """The recipe with the least mean negative log-likelihood over seeds."""
    return Recipe(**min(_groups(results)[network, method], key=_score)["recipe"])


def _section(results: Results) -> str:
    rows = []
    for tried in _groups(results).values():
        best = min(tried, key=_score)
        means = {name: statistics.mean(best[name]) for name in FIGURES}
        rows.append({**best["recipe"], "tried": len(tried), **means})
    return markdown(
        f"""
        Candidates were trained on the first {results["trained_on"]:,} training images and tried on the last
        {results["tried_on"]:,}, with {len(results["seeds"])} seeds each; the least negative log-likelihood wins. All
        have tanh for ReLU, batches of {round(BATCH_SHARE * 60_000)} of 60,000 images, {EPOCHS} epochs, and a rate that
        falls to an eighth in eight steps (but for DP-SGLD, whose rate is the one at which the budget's noise is
        Langevin noise of temperature 1/2); some 160 earlier trials on the same images, of which no record is kept, had
        led there. The grids are small: several winners lie at an edge, and two seeds differ by more than many
        candidates do. The test images were used once, for the winners, and no choice was made by them; but that tanh
        and large batches help was known beforehand, from the literature and from earlier work on these data. The
        epsilons on this page do not include any of this choosing: on private data it would be a release of its own.
        """,
        table_of(
            rows,
            NETWORK,
            METHOD,
            ("tried", lambda row: str(row["tried"])),
            ("clip norm", lambda row: f"{row['clip_norm']:g}"),
            ("rate", lambda row: "-" if row["rate"] is None else f"{row['rate']:g}"),
            ("prior's scale", lambda row: f"{row['prior']:g}"),
            ("dropout", lambda row: f"{row['dropout']:g}"),
            *((heading, lambda row, name=name: number(row[name])) for name, heading in FIGURES.items()),
        ),
    )


def _picture(results: Results) -> Figure:
    groups = _groups(results)
    networks = dict.fromkeys(network for network, _ in groups)
    figure, axes = style.panels(1, len(networks), height=70)
    for panel, network in zip(axes, networks, strict=True):
        for method, (mark, colour) in zip(METHODS, MARKS[1:], strict=False):
            rows = groups[network, method]
            accuracies = [statistics.mean(row["accuracy"]) for row in rows]
            scores = list(map(_score, rows))
            panel.plot(scores, accuracies, mark, color=colour, markersize=4, alpha=0.8, label=METHODS[method])
        panel.set(xlabel="negative log-likelihood, held-out images", ylabel="accuracy, held-out images")
        titled(panel, NETWORKS[network])
    style.top_legend(figure, axes[0], columns=4)
    return figure


ITEM = Item("tuning", "How the best settings were found", _template, _section, _picture)
