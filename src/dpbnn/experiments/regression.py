"""Regression: the paper's table of squared errors and its bands, beside what an oracle reaches on the same records.

All records are in every step (q = 1), 200 steps, delta 1/250. Noise multiplier 10 gives epsilon 4.19. The paper's rate
of DP-SGLD, 2.5e-4 with C 100, can be read in two ways. As the eta of its Algorithm 2 it means a noise multiplier of
1 / (sqrt(eta) C) = 0.632, and epsilon 308. As the rate of a mean gradient, n eta, it means eta 1e-6 and the noise
multiplier 10 of the other methods: what the paper must have meant. Both are run.
"""

import statistics
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

import dpbnn
from dpbnn import metrics
from dpbnn.experiments.item import Found, Item, Job, Results, Size, mark_of
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.recipes import falling
from dpbnn.experiments.settings import METHODS
from dpbnn.experiments.simulated import NOISE_MEAN_SQUARE, TRAIN_RECORDS, Simulated, simulate
from dpbnn.experiments.words import by_accountant, number, paragraph, private, spread, table
from dpbnn.methods import Method
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

STEPS, DELTA, NOISE = 200, 1 / TRAIN_RECORDS, 10.0
DRAWS = 10
"""Times the draws of a classifier: 1000, as in the paper."""
PAPER = {"sgld": [0.510, 0.523], "bbp": [1.276, 0.562], "mc_dropout": [0.682, 0.591]}
"""Mean squared error, private and not."""
WAYS = {
    "not_private": "not private, paper's rates",
    "private": "private, paper's settings",
    "as_printed": "private, rate as eta",
    "best": "private, best",
}
"""The third for DP-SGLD alone."""
DIVERGED = 1e6
"""A squared error that nobody has who has learned anything."""


@dataclass(frozen=True)
class RegressionSetting:
    """One way to train a network 1-200-200-2, which predicts mean and spread."""

    method: Method[Any]
    clip_norm: float
    noise_multiplier: float = NOISE
    steps: int = STEPS
    is_private: bool = True
    activation: str = "relu"
    dropout: float = 0.0

    def plan(self) -> dpbnn.PrivacyPlan:
        """All records in every step."""
        size: Any = {"dataset_size": TRAIN_RECORDS, "batch_size": TRAIN_RECORDS, "steps": self.steps}
        if not self.is_private:
            return dpbnn.PrivacyPlan.without_privacy(**size)
        return dpbnn.PrivacyPlan(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier, delta=DELTA, **size)

    def model(self) -> dpbnn.networks.MLP:
        """With weights as torch's generator has them."""
        return dpbnn.networks.MLP(1, [200, 200], 2, activation=self.activation, dropout=self.dropout)

    def to_json(self) -> dict[str, Any]:
        """All of it; the method as text."""
        return {name: repr(value) if name == "method" else value for name, value in vars(self).items()}


def langevin(rate: float, clip_norm: float, prior: float, steps: int, activation: str) -> RegressionSetting:
    """DP-SGLD at temperature 1/2, with the noise multiplier that this means."""
    method = dpbnn.SGLD(rate, dpbnn.Gaussian(prior), temperature=0.5)
    return RegressionSetting(method, clip_norm, rate**-0.5 / clip_norm, steps, activation=activation)


THE_PAPERS = {
    "sgld": langevin(2.5e-4 / TRAIN_RECORDS, 100.0, 0.1, STEPS, "relu"),
    "bbp": RegressionSetting(dpbnn.BBP(0.01, dpbnn.Gaussian(0.1)), 100.0),
    "mc_dropout": RegressionSetting(dpbnn.MCDropout(5e-5, dpbnn.Gaussian(0.1)), 2000.0, dropout=0.5),
}
LONGER = 2 * STEPS
"""As private with sqrt(2) times the noise: every step has all records."""
HOW: Any = {"clip_norm": 10.0, "noise_multiplier": 2**0.5 * NOISE, "steps": LONGER}
BEST = {
    "sgld": langevin(5e-5, 10.0, 0.4, LONGER, "tanh"),
    "bbp": RegressionSetting(dpbnn.BBP(falling(0.03, LONGER), dpbnn.Gaussian(0.3)), **HOW),
    "mc_dropout": RegressionSetting(dpbnn.MCDropout(falling(0.03, LONGER), dpbnn.Gaussian(0.3)), dropout=0.05, **HOW),
}
"""Chosen on other simulations (seeds 100 to 109) than those that are reported."""


@dataclass(frozen=True)
class Regression:
    """One simulation, its network, and what both the network and the oracle predict; a job."""

    setting: RegressionSetting
    seed: int
    size: Size
    on_host: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """For example "regression, SGLD, 1f0a93, seed 0"."""
        return f"regression, {type(self.setting.method).__name__}, {mark_of(self.settings)}, seed {self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """The setting, and how much is measured."""
        return {"setting": self.setting.to_json(), "seed": self.seed, "draws": DRAWS * self.size.draws}

    @property
    def together(self) -> Hashable:
        """Runs of one setting: for the sake of the progress bar alone."""
        return repr(self.setting)

    @classmethod
    def run_all(cls, jobs: "Sequence[Regression]", device: str) -> Iterator[Found]:
        """One after another."""
        for job in jobs:
            own = simulate(job.seed)
            torch.manual_seed(job.seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
                release = dpbnn.fit(
                    job.setting.model().to(device),
                    own.x.to(device),
                    own.y.to(device),
                    method=job.setting.method,
                    plan=job.setting.plan(),
                    likelihood=dpbnn.HeteroscedasticGaussian(),
                    seed=job.seed,
                    progress=False,
                )
            yield {"seed": job.seed, **_measured(release, own, job)}


def _measured(release: dpbnn.Release, own: Simulated, job: Regression) -> dict[str, Any]:
    how: Any = {"num_draws": DRAWS * job.size.draws, "seed": job.seed}
    prediction: Any = release.predict(own.x_test, **how)
    oracle = own.oracle(own.x_test)
    return {
        "epsilon": release.guarantee.epsilon if job.setting.is_private else None,
        "squared_error": round(metrics.regression.rmse(prediction, own.y_test) ** 2, 5),
        "oracle": round(float((oracle - own.y_test[:, 0]).square().mean()), 5),
        "coverage": round(metrics.regression.coverage(prediction, own.y_test, 0.95), 5),
        "bands": _bands(release, own, how) if job.seed == 0 else None,
    }


def _bands(release: dpbnn.Release, own: Simulated, how: Mapping[str, Any]) -> dict[str, list[float]]:
    """Over the inputs and a little beyond."""
    x = torch.linspace(-4, 4, 81)[:, None]
    prediction: Any = release.predict(x, **how)
    lines = {
        "x": x,
        "mean": prediction.mean,
        "epistemic": prediction.epistemic_variance.sqrt(),
        "total": (prediction.epistemic_variance + prediction.aleatoric_variance).sqrt(),
        "oracle": own.oracle(x),
    }
    return {name: [round(value, 4) for value in values.flatten().tolist()] for name, values in lines.items()}


def settings_of(method: str) -> dict[str, RegressionSetting]:
    """By way."""
    own = THE_PAPERS[method]
    printed = {"as_printed": langevin(2.5e-4, 100.0, 0.1, STEPS, "relu")} if method == "sgld" else {}
    return {"not_private": replace(own, is_private=False), "private": own, **printed, "best": BEST[method]}


def runs_of(setting: RegressionSetting, size: Size) -> list[Regression]:
    """One for each simulation."""
    return [Regression(setting, seed, size) for seed in range(size.regression_seeds)]


def jobs(size: Size) -> Sequence[Job]:
    """Three methods in their ways."""
    return [run for method in PAPER for setting in settings_of(method).values() for run in runs_of(setting, size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each method."""
    rows = []
    for method in PAPER:
        row: dict[str, Any] = {
            "method": method,
            "paper": dict(zip(("private", "not_private"), PAPER[method], strict=True)),
        }
        for way, setting in settings_of(method).items():
            runs = [found[run.key] for run in runs_of(setting, size)]
            row[way] = {
                "settings": setting.to_json(),
                "seeds": [run["seed"] for run in runs],
                "epsilon": by_accountant(setting.plan()) if setting.is_private else None,
                "ours": [run["squared_error"] if run["squared_error"] < DIVERGED else None for run in runs],
                "coverage": [run["coverage"] for run in runs],
                "oracle": [run["oracle"] for run in runs],
                "bands": runs[0]["bands"],
            }
        rows.append(row)
    own = simulate(0)
    data = {name: [round(value, 4) for value in getattr(own, name)[:, 0].tolist()] for name in ("x", "y")}
    return {"noise_mean_square": NOISE_MEAN_SQUARE, "oracle": rows[0]["best"]["oracle"], "rows": rows, "data": data}


def section(found: Results) -> str:
    """Errors beside the oracle's, and where the paper does not fit."""
    printed, best = (found["rows"][0][way] for way in ("as_printed", "best"))
    parts = [
        paragraph(f"""
            250 records for training and 150 for testing, drawn as the paper's text has it (lengthscale 1, which it does
            not give), a new draw for each seed; delta 1/250. The oracle is the exact Gaussian process that knows kernel
            and noise; its squared error is **{spread(found["oracle"])}**. Beside the errors stands the median of their
            ratios to the oracle's on the same records.
        """),
        _errors(found),
        paragraph(f"""
            The noise of the targets alone has mean square {found["noise_mean_square"]:.2f}: medians of 0.510 and 0.523
            over 20 draws of data as described are out of reach, also of the oracle's, and 0.562 and 0.591 would be rare
            luck. The paper's rate of DP-SGLD, 2.5e-4 with clip norm 100, is that of a mean gradient here, as for the
            other methods: eta = 2.5e-4 / 250, with noise multiplier 1 / (sqrt(eta) C) = 10 and its epsilon. As the eta
            of its Algorithm 2 it would mean a noise multiplier of {printed["settings"]["noise_multiplier"]:.3f} and
            epsilon {printed["epsilon"]["pld"]:.0f}. Caption and text of its figure swap the two colours.
        """),
        paragraph(f"""
            The best settings have {best["settings"]["steps"]} steps with sqrt(2) times the noise, which is as private,
            and clip norm 10; DP-SGLD also tanh for ReLU and a wider prior. They were chosen by hand, by the error on
            other simulations than these, and DP-SGLD was given the most thought. Its error is the smallest of them, and
            its 95 % intervals are too narrow. MC Dropout takes plain SGD here.
        """),
    ]
    return "\n\n".join(parts)


def _errors(found: Results) -> str:
    lines = []
    for row in found["rows"]:
        for way, name in WAYS.items():
            if way in row:
                own = row[way]
                epsilon = own["epsilon"]["pld"] if own["epsilon"] else None
                pairs = zip(own["ours"], own["oracle"], strict=True)
                ratio = statistics.median(error / oracle for error, oracle in pairs if error is not None)
                cells = [private(epsilon), number(row["paper"].get(way)), spread(own["ours"]), f"{ratio:.2f}x"]
                lines.append([METHODS[row["method"]], name, *cells, number(statistics.median(own["coverage"]))])
    columns = ["method", "", "epsilon", "paper", "ours", "over the oracle", "coverage of 95 % intervals"]
    return table(columns, lines)


def picture(found: Results) -> "Figure":
    """The bands of the first simulation, two standard deviations wide."""
    shown = {way: name for way, name in WAYS.items() if way != "as_printed"}
    figure, axes = style.panels(len(shown), len(PAPER), height=52)
    for line, (way, name) in enumerate(shown.items()):
        for column, row in enumerate(found["rows"]):
            one, bands = axes[line * len(PAPER) + column], row[way]["bands"]
            _draw(one, bands, found["data"])
            titled(one, f"{METHODS[row['method']]}\n{name}")
    style.top_legend(figure, axes[0], columns=5)
    return figure


def _draw(axes: "Axes", bands: Mapping[str, Sequence[float]], data: Mapping[str, Sequence[float]]) -> None:
    def band(width: str) -> tuple[list[float], list[float]]:
        pairs = list(zip(bands["mean"], bands[width], strict=True))
        return [mean - 2 * std for mean, std in pairs], [mean + 2 * std for mean, std in pairs]

    axes.plot(data["x"], data["y"], ".", color=style.GREY, markersize=1.5, label="training records")
    axes.fill_between(bands["x"], *band("total"), color=style.SKY, alpha=0.45, linewidth=0, label="new targets")
    axes.fill_between(
        bands["x"], *band("epistemic"), color=style.BLUE, alpha=0.5, linewidth=0, label="doubt about the weights"
    )
    axes.plot(bands["x"], bands["oracle"], color=style.VERMILION, linestyle="--", linewidth=1, label="oracle's mean")
    axes.plot(bands["x"], bands["mean"], color=style.INK, linewidth=1.2, label="mean")
    axes.set(xlabel="x", ylabel="y", xlim=(-4, 4), ylim=(-6, 6))


ITEM = Item("regression", "Regression", jobs, results, section, picture)
