"""Regression: the paper's table of squared errors and its bands, beside what an oracle reaches on the same records.

Inputs are uniform on (-3, 3). Targets are one draw of a Gaussian process (RBF kernel, variance 1, lengthscale 1) plus
independent noise of standard deviation ``0.3 x + 0.6``. The oracle knows kernel and noise: no method predicts better on
average, and its error is mostly the noise's mean square, 0.63.

All records are in every step (q = 1), 200 steps, delta 1/250. Noise multiplier 10 gives epsilon 4.19. The paper's rate
of DP-SGLD, 2.5e-4 with C 100, can be read in two ways. As the eta of its Algorithm 2 it means a noise multiplier of
1 / (sqrt(eta) C) = 0.632, and epsilon 308. As the rate of a mean gradient, n eta, it means eta 1e-6 and the noise
multiplier 10 of the other methods: what the paper must have meant. Both are run.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import dpbnn
from dpbnn import metrics
from dpbnn.experiments.item import Item, Later, Outcome, Results, Size, each, first
from dpbnn.experiments.pictures import Axes, Figure, titled
from dpbnn.experiments.settings import METHODS, falling
from dpbnn.experiments.training import SeededRun, about, rounded
from dpbnn.experiments.words import METHOD, epsilon_text, markdown, number, spread, table_of
from dpbnn.methods import Method
from dpbnn.plots import style

__all__ = ["ITEM", "NOISE_MEAN_SQUARE", "simulate"]

Array = npt.NDArray[np.float64]
TRAIN_RECORDS, TEST_RECORDS = 250, 150
NOISE_MEAN_SQUARE = 0.3**2 * 3 + 0.6**2
"""The mean square of 0.3 x + 0.6, where x has variance 3."""
STEPS, DELTA, NOISE = 200, 1 / TRAIN_RECORDS, 10.0
DRAWS = 10
"""How many times the draws of a classifier: 1000 draws, as in the paper."""
PAPER = {"sgld": [0.510, 0.523], "bbp": [1.276, 0.562], "mc_dropout": [0.682, 0.591]}
"""The paper's mean squared errors, with privacy and without."""
WAYS = {
    "not_private": "not private, paper's rates",
    "private": "private, paper's settings",
    "as_printed": "private, rate as eta",
    "best": "private, best",
}
"""The ways to train; only DP-SGLD has the third."""
DIVERGED = 1e6
"""Squared errors above this one count as diverged."""


@dataclass(frozen=True)
class Simulated:
    """Training and test records, as columns."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def oracle(self, at: Tensor) -> Tensor:
        """The mean of the process at these inputs, given the training records."""
        x, y, new = (values.cpu().double().numpy()[:, 0] for values in (self.x, self.y, at))
        weights = np.linalg.solve(_kernel(x, x) + np.diag(_noise_std(x) ** 2), y)
        return torch.from_numpy(_kernel(new, x) @ weights)


def simulate(seed: int) -> Simulated:
    """Draw 400 records, the first 250 for training."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, TRAIN_RECORDS + TEST_RECORDS)
    smooth = np.linalg.cholesky(_kernel(x, x) + 1e-8 * np.eye(len(x))) @ generator.standard_normal(len(x))
    y = smooth + _noise_std(x) * generator.standard_normal(len(x))
    columns = [torch.from_numpy(values).float()[:, None] for values in (x, y)]
    (x_train, x_test), (y_train, y_test) = (both.split([TRAIN_RECORDS, TEST_RECORDS]) for both in columns)
    return Simulated(x_train, y_train, x_test, y_test)


def _noise_std(x: Array) -> Array:
    """The standard deviation of the targets' noise, up to its sign."""
    return 0.3 * x + 0.6


def _kernel(left: Array, right: Array) -> Array:
    distance = left[:, None] - right[None]
    kernel: Array = np.exp(-(distance**2) / 2)
    return kernel


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
    likelihood: ClassVar = dpbnn.HeteroscedasticGaussian()

    @property
    def label(self) -> str:
        """The beginning of a run's key."""
        return f"regression, {type(self.method).__name__}"

    def plan(self) -> dpbnn.PrivacyPlan:
        """The plan, with all records in every step."""
        size: Any = {"dataset_size": TRAIN_RECORDS, "batch_size": TRAIN_RECORDS, "steps": self.steps}
        if not self.is_private:
            return dpbnn.PrivacyPlan.without_privacy(**size)
        return dpbnn.PrivacyPlan(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier, delta=DELTA, **size)

    def model(self) -> dpbnn.networks.MLP:
        """A new network, whose weights come from torch's generator."""
        return dpbnn.networks.MLP(1, [200, 200], 2, activation=self.activation, dropout=self.dropout)

    def to_json(self) -> dict[str, Any]:
        """All fields, the method as text."""
        return {name: repr(value) if name == "method" else value for name, value in vars(self).items()}


def langevin(rate: float, clip_norm: float, prior: float, steps: int, activation: str) -> RegressionSetting:
    """DP-SGLD at temperature 1/2, with the noise multiplier that this means."""
    method = dpbnn.SGLD(rate, dpbnn.Gaussian(prior), temperature=0.5)
    return RegressionSetting(method, clip_norm, rate**-0.5 / clip_norm, steps, activation=activation)


LONGER = 2 * STEPS
"""Twice the steps are as private with sqrt(2) times the noise, because every step has all records."""
HOW: Any = {"clip_norm": 10.0, "noise_multiplier": 2**0.5 * NOISE, "steps": LONGER}
RATES = falling(0.03, LONGER)
SETTINGS: dict[str, dict[str, RegressionSetting]] = {
    "sgld": {
        "private": langevin(2.5e-4 / TRAIN_RECORDS, 100.0, 0.1, STEPS, "relu"),
        "as_printed": langevin(2.5e-4, 100.0, 0.1, STEPS, "relu"),
        "best": langevin(5e-5, 10.0, 0.4, LONGER, "tanh"),
    },
    "bbp": {
        "private": RegressionSetting(dpbnn.BBP(0.01, dpbnn.Gaussian(0.1)), 100.0),
        "best": RegressionSetting(dpbnn.BBP(RATES, dpbnn.Gaussian(0.3)), **HOW),
    },
    "mc_dropout": {
        "private": RegressionSetting(dpbnn.MCDropout(5e-5, dpbnn.Gaussian(0.1)), 2000.0, dropout=0.5),
        "best": RegressionSetting(dpbnn.MCDropout(RATES, dpbnn.Gaussian(0.3)), dropout=0.05, **HOW),
    },
}
"""Private settings, by method and way. The best were chosen on other simulations (seeds 100 to 109) than the reported
ones."""


class Regression(SeededRun):
    """One simulation, its network, and what both the network and the oracle predict; a job."""

    at_once = False

    @property
    def measured(self) -> dict[str, Any]:
        """The number of draws."""
        return {"draws": DRAWS * self.size.draws}

    def data(self, device: str) -> Simulated:
        """A simulation from the seed, its training records on the device."""
        data = simulate(self.seed)
        return replace(data, x=data.x.to(device), y=data.y.to(device))

    def fit(self, data: Simulated, **more: Any) -> dpbnn.Release:
        """Train in full precision, on a GPU too."""
        return super().fit(data, execution=None, **more)

    def measure(self, release: dpbnn.Release, data: Simulated) -> Outcome:
        """Errors and coverage on the test records; bands of the first simulation."""
        how: Any = {"num_draws": DRAWS * self.size.draws, "seed": self.seed}
        prediction: Any = release.predict(data.x_test, **how)
        oracle = data.oracle(data.x_test)
        return {
            "epsilon": release.guarantee.epsilon if self.setting.is_private else None,
            "squared_error": rounded(metrics.regression.rmse(prediction, data.y_test) ** 2),
            "oracle": rounded(float((oracle - data.y_test[:, 0]).square().mean())),
            "coverage": rounded(metrics.regression.coverage(prediction, data.y_test, 0.95)),
            "bands": _bands(release, data, how) if self.seed == 0 else None,
        }


def _bands(release: dpbnn.Release, data: Simulated, how: Mapping[str, Any]) -> dict[str, list[float]]:
    """The predicted mean and standard deviations, and the oracle's mean, along x."""
    x = torch.linspace(-4, 4, 81)[:, None]
    prediction: Any = release.predict(x, **how)
    lines = {
        "x": x,
        "mean": prediction.mean,
        "epistemic": prediction.epistemic_variance.sqrt(),
        "total": (prediction.epistemic_variance + prediction.aleatoric_variance).sqrt(),
        "oracle": data.oracle(x),
    }
    return {name: rounded(values.flatten(), 4) for name, values in lines.items()}


def _template(size: Size) -> Results:
    """A row for each method, with each way to train it."""
    rows: list[Results] = []
    for method, paper in PAPER.items():
        settings = {"not_private": replace(SETTINGS[method]["private"], is_private=False), **SETTINGS[method]}
        ways = {way: _way(setting, size) for way, setting in settings.items()}
        rows.append({"method": method, "paper": dict(zip(("private", "not_private"), paper, strict=True)), **ways})
    data = {name: rounded(getattr(simulate(0), name)[:, 0], 4) for name in ("x", "y")}
    return {"noise_mean_square": NOISE_MEAN_SQUARE, "oracle": rows[0]["best"]["oracle"], "rows": rows, "data": data}


def _way(setting: RegressionSetting, size: Size) -> Results:
    runs = Regression.of(setting, size, size.regression_seeds)

    def errors(outcomes: list[Outcome]) -> list[float | None]:
        return [run["squared_error"] if run["squared_error"] < DIVERGED else None for run in outcomes]

    return {
        **about(setting, size.regression_seeds),
        "ours": Later(runs, errors),
        "coverage": each(runs, "coverage"),
        "oracle": each(runs, "oracle"),
        "bands": first(runs, "bands"),
    }


def _section(results: Results) -> str:
    printed, best = (results["rows"][0][way] for way in ("as_printed", "best"))
    return markdown(
        f"""
        250 records for training and 150 for testing, drawn as the paper's text has it (lengthscale 1, which it does not
        give), a new draw for each seed; delta 1/250. The oracle is the exact Gaussian process that knows kernel and
        noise; its squared error is **{spread(results["oracle"])}**. Beside the errors stands the median of their ratios
        to the oracle's on the same records.
        """,
        _errors(results),
        f"""
        The noise of the targets alone has mean square {results["noise_mean_square"]:.2f}: medians of 0.510 and 0.523
        over 20 draws of data as described are out of reach, also of the oracle's, and 0.562 and 0.591 would be rare
        luck. The paper's rate of DP-SGLD, 2.5e-4 with clip norm 100, is that of a mean gradient here, as for the other
        methods: eta = 2.5e-4 / 250, with noise multiplier 1 / (sqrt(eta) C) = 10 and its epsilon. As the eta of its
        Algorithm 2 it would mean a noise multiplier of {printed["settings"]["noise_multiplier"]:.3f} and epsilon
        {printed["epsilon"]["pld"]:.0f}. Caption and text of its figure swap the two colours.
        """,
        f"""
        The best settings have {best["settings"]["steps"]} steps with sqrt(2) times the noise, which is as private, and
        clip norm 10; DP-SGLD also tanh for ReLU and a wider prior. They were chosen by hand, by the error on other
        simulations than these, and DP-SGLD was given the most thought. Its error is the smallest of them, and its 95 %
        intervals are too narrow. MC Dropout takes plain SGD here.
        """,
    )


def _errors(results: Results) -> str:
    rows = [
        {"method": row["method"], "name": name, "paper": row["paper"].get(way), **row[way]}
        for row in results["rows"]
        for way, name in WAYS.items()
        if way in row
    ]

    def ratio(row: Results) -> str:
        pairs = zip(row["ours"], row["oracle"], strict=True)
        return f"{statistics.median(error / oracle for error, oracle in pairs if error is not None):.2f}x"

    return table_of(
        rows,
        METHOD,
        ("", lambda row: row["name"]),
        ("epsilon", lambda row: epsilon_text(row["epsilon"] and row["epsilon"]["pld"])),
        ("paper", lambda row: number(row["paper"])),
        ("ours", lambda row: spread(row["ours"])),
        ("over the oracle", ratio),
        ("coverage of 95 % intervals", lambda row: number(statistics.median(row["coverage"]))),
    )


def _picture(results: Results) -> Figure:
    """The bands of the first simulation, two standard deviations wide."""
    figure, axes = style.panels(3, len(PAPER), height=52)
    shown = product(("not_private", "private", "best"), results["rows"])
    for panel, (way, row) in zip(axes, shown, strict=True):
        _draw(panel, row[way]["bands"], results["data"])
        titled(panel, f"{METHODS[row['method']]}\n{WAYS[way]}")
    style.top_legend(figure, axes[0], columns=5)
    return figure


def _draw(axes: Axes, bands: Mapping[str, Sequence[float]], data: Mapping[str, Sequence[float]]) -> None:
    axes.plot(data["x"], data["y"], ".", color=style.GREY, markersize=1.5, label="training records")
    looks = {
        "total": (style.SKY, 0.45, "new targets"),
        "epistemic": (style.BLUE, 0.5, "uncertainty about the weights"),
    }
    mean = torch.tensor(bands["mean"], dtype=torch.float64)
    for width, (colour, alpha, label) in looks.items():
        reach = 2 * torch.tensor(bands[width], dtype=torch.float64)
        low, high = (mean - reach).tolist(), (mean + reach).tolist()
        axes.fill_between(bands["x"], low, high, color=colour, alpha=alpha, linewidth=0, label=label)
    axes.plot(bands["x"], bands["oracle"], color=style.VERMILION, linestyle="--", linewidth=1, label="oracle's mean")
    axes.plot(bands["x"], bands["mean"], color=style.INK, linewidth=1.2, label="mean")
    axes.set(xlabel="x", ylabel="y", xlim=(-4, 4), ylim=(-6, 6))


ITEM = Item("regression", "Regression", _template, _section, _picture)
