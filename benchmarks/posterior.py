"""How far DP-SGLD is from the exact posterior, and what a summary of its chain costs.

    python benchmarks/posterior.py [--json FILE]

Bayesian linear regression has a known posterior. Three things separate a chain at temperature 1 from it: the step size,
minibatch noise and clipping. The first two have exact formulas, which are printed beside what was measured. The third
has none: the shares of clipped records at the posterior mean are set by the clip norm. Then one chain on handwritten
digits is kept in several forms, and their predictions compared.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dpbnn
from dpbnn import metrics
from dpbnn.methods.store import Keeping
from dpbnn.posterior import LowRankGaussian, MeanField, PointEstimate, WeightSamples

D, CHAINS = 5, 200
NOISE, SCALE = 0.5, 1.0
SEED = 0
RATE = 4.0
"""Of DP-SGD on the digits."""


@dataclass(frozen=True)
class Regression:
    """``y = X w + N(0, 0.5^2)``, fitted with the right noise.

    Every output of the network has the same targets, so that each is a chain of its own.
    """

    x: Tensor
    y: Tensor

    @staticmethod
    def of_size(n: int) -> "Regression":
        """Synthetic records."""
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(n, D, generator=generator, dtype=torch.float64)
        weights = torch.randn(D, generator=generator, dtype=torch.float64)
        return Regression(x, x @ weights + NOISE * torch.randn(n, generator=generator, dtype=torch.float64))

    @property
    def precision(self) -> Tensor:
        """Of the exact posterior."""
        return self.x.T @ self.x / NOISE**2 + torch.eye(D, dtype=torch.float64) / SCALE**2

    @property
    def mean(self) -> Tensor:
        """Of the exact posterior."""
        return torch.linalg.solve(self.precision, self.x.T @ self.y / NOISE**2)

    def stationary_covariance(self, rate: float, q: float) -> Tensor:
        """S = (I - eta P) S (I - eta P) + 2 eta I + eta^2 (1/q - 1) sum_i E[g_i g_i'], by iteration."""
        shrink = torch.eye(D, dtype=torch.float64) - rate * self.precision
        covariance, residuals = torch.linalg.inv(self.precision), self.x @ self.mean - self.y
        for _ in range(5000):
            spread = residuals.square() + ((self.x @ covariance) * self.x).sum(dim=1)
            gradients = (self.x * (spread / NOISE**4)[:, None]).T @ self.x
            covariance = shrink @ covariance @ shrink + rate**2 * (1 / q - 1) * gradients
            covariance += 2 * rate * torch.eye(D, dtype=torch.float64)
        return covariance

    def inflation(self, covariance: Tensor) -> float:
        """The mean over all directions of its variance over the exact one."""
        return float(torch.trace(covariance @ self.precision)) / D

    def chains(
        self, plan: dpbnn.PrivacyPlan, rate: float, burn_in: int, count: int = CHAINS, seed: int = SEED
    ) -> Tensor:
        """Samples of `count` chains at temperature 1, ``[samples, D]``; they start at the posterior mean."""
        model = nn.Linear(D, count, bias=False).double()
        model.weight.data.copy_(self.mean.expand(count, D))
        keep_as = dpbnn.KeepSamples(burn_in=burn_in, max_samples=500)
        release = dpbnn.fit(
            model,
            self.x,
            self.y[:, None].expand(-1, count),
            method=dpbnn.SGLD(rate, dpbnn.Gaussian(SCALE), temperature=1.0, keep_as=keep_as),
            plan=plan,
            likelihood=dpbnn.HomoscedasticGaussian(NOISE),
            seed=seed,
            progress=False,
        )
        assert isinstance(release.posterior, WeightSamples)
        return release.posterior.samples["weight"].reshape(-1, D)


def minibatches(n: int = 400, steps: int = 6000) -> list[dict[str, float]]:
    """Variance over the exact one, for batch sizes and learning rates; no privacy, no clipping."""
    problem, rows = Regression.of_size(n), []
    for batch_size, rate in [(400, 2e-4), (100, 2e-4), (40, 2e-4), (10, 2e-4), (10, 5e-5), (40, 5e-5)]:
        plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=n, batch_size=batch_size, steps=steps)
        samples = problem.chains(plan, rate, burn_in=steps // 10)
        found = problem.inflation(torch.from_numpy(np.cov(samples.T.numpy())))
        theory = problem.inflation(problem.stationary_covariance(rate, batch_size / n))
        rows.append({"batch_size": batch_size, "learning_rate": rate, "theory": theory, "measured": found})
    return rows


def clipping(n: int = 400, steps: int = 3000, rate: float = 5e-5) -> list[dict[str, float]]:
    """Variance over the exact one and shift of the mean, full batch, under privacy noise at temperature 1.

    One output only: the gradient that is clipped is that of one regression.
    """
    problem, rows = Regression.of_size(n), []
    residuals = (problem.x @ problem.mean - problem.y) / NOISE**2
    norms = residuals.abs() * problem.x.norm(dim=1)
    for share in (0.0, 0.05, 0.25, 0.5, 0.9):
        clip_norm = 100 * float(norms.max()) if share == 0 else float(norms.quantile(1 - share))
        plan = dpbnn.PrivacyPlan(n, n, steps, clip_norm=clip_norm, noise_multiplier=1e-9, delta=1e-5)
        samples = torch.cat([problem.chains(plan, rate, burn_in=300, count=1, seed=seed) for seed in range(6)])
        covariance = torch.from_numpy(np.cov(samples.T.numpy()))
        apart = samples.mean(dim=0) - problem.mean
        shift = float((apart @ problem.precision @ apart / D).sqrt())
        found = {"share_clipped": share, "clip_norm": clip_norm, "variance": problem.inflation(covariance)}
        rows.append(found | {"shift_in_standard_deviations": shift})
    return rows


def summaries(ranks: Sequence[int] = (1, 5, 20), seeds: int = 3) -> list[dict[str, Any]]:
    """The same private chain on handwritten digits, kept in several forms; NLL and accuracy on digits kept aside."""
    X, y = load_digits(return_X_y=True)
    aside = np.arange(len(X)) % 5 == 4
    size = int((~aside).sum())
    plan = dpbnn.PrivacyPlan.for_budget(
        epsilon=4.0, delta=1e-4, dataset_size=size, batch_size=720, steps=600, clip_norm=0.25
    )
    rows: dict[str, list[dict[str, float]]] = {}
    forms: list[Keeping] = [dpbnn.KeepSamples(), *(dpbnn.KeepSummary(rank=rank) for rank in ranks)]
    for seed in range(seeds):
        for keep_as in forms:
            torch.manual_seed(seed)
            release = dpbnn.fit(
                dpbnn.networks.MLP(64, [64], 10, activation="tanh"),
                X[~aside] / 16,
                y[~aside],
                method=dpbnn.SGLD(RATE / size, dpbnn.Gaussian(1.0), keep_as=keep_as),
                plan=plan,
                likelihood=dpbnn.Categorical(),
                unsafe_seed=seed,  # the same chain in every form
                progress=False,
            )
            for name, posterior in _forms(release.posterior).items():
                figures = metrics.evaluate(
                    replace(release, posterior=posterior).predict(X[aside] / 16, seed=1), y[aside]
                )
                rows.setdefault(name, []).append(figures)
    keys = ("negative_log_likelihood", "accuracy", "expected_calibration_error")
    return [
        {"kept": name, **{key: float(np.mean([f[key] for f in found])) for key in keys}} for name, found in rows.items()
    ]


def _forms(posterior: Any) -> dict[str, Any]:
    if isinstance(posterior, LowRankGaussian):
        return {f"summary of rank {len(next(iter(posterior.directions.values())))}": posterior}
    assert isinstance(posterior, WeightSamples)
    mean = {name: values.mean(dim=0) for name, values in posterior.samples.items()}
    deviation = {name: values.std(dim=0) for name, values in posterior.samples.items()}
    return {
        f"all {len(posterior)} samples": posterior,
        "mean and variances alone": MeanField(mean, deviation),
        "the mean alone": PointEstimate(mean),
        "the last iterate alone": PointEstimate(posterior.sample(len(posterior) - 1)),
    }


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """One row for each setting."""
    shown = Table(*(key.replace("_", " ") for key in rows[0]), title=title)
    for row in rows:
        shown.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    return shown


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="How far DP-SGLD is from the exact posterior.")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "minibatch noise": minibatches,
        "clipping": clipping,
        "summary of the chain": summaries,
    }
    results = {}
    for title, measure in parts.items():
        results[title] = measure()
        Console().print(table(title, results[title]))
    arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
