"""Theorem 4: how the smallest gradient norm of a run falls with the number of steps T, and how it does not.

The theorem says T^(-1/4) for DP-SGLD with eta ~ T^(-1/3) and C ~ T^(-1/6). It rests on Theorem 1 with its noise upside
down. With the noise of the algorithm itself, N(0, eta), its condition reads

    eta^2 n^2 C^2 T L + 2 tau eta d T L = L0,

whose second term needs eta ~ 1/T; at a fixed temperature no schedule drives the gradient to zero, because a sampler
does not come to rest. DP-SGD with constant noise multiplier and clip norm and eta ~ T^(-1/2) does.
"""

import statistics
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import dpbnn
from dpbnn.data import Images
from dpbnn.experiments.item import Item, Later, Outcome, Results, Size
from dpbnn.experiments.pictures import LINES, MARKS, Figure, log_ticks, titled
from dpbnn.experiments.settings import Setting, langevin_noise
from dpbnn.experiments.training import SeededRun, about, keeping, rounded, tightest_epsilon
from dpbnn.experiments.words import epsilon_text, markdown, number, spread, table_of
from dpbnn.plots import style

__all__ = ["ITEM"]

RECORDS, BATCH_SIZE, HIDDEN, MOST_ITERATES = 2_000, 200, 20, 500
FIRST = 100
"""The number of steps at which both schedules have the same rate and clip norm."""
SCHEDULES = {
    "DP-SGLD, eta ~ T^(-1/3), C ~ T^(-1/6)": {"rate": -1 / 3, "clip_norm": -1 / 6},
    "DP-SGD, eta ~ T^(-1/2), constant C and noise": {"rate": -1 / 2, "clip_norm": 0.0},
}
"""Powers of T: those of the theorem, and those for which gradients do fall."""
RATE, CLIP_NORM = 0.5, 1.0
"""Learning rate (in units of DP-SGD) and clip norm of a run of FIRST steps."""
ACTIVATIONS = {"relu": "ReLU, as in the paper", "tanh": "tanh"}
NOISE = 1.0
"""The noise multiplier of DP-SGD; that of DP-SGLD follows from its rate."""


class GradientNorms(SeededRun):
    """The norm of the mean gradient over all training images, at iterates all along a run; a job."""

    purpose = "gradient norms"

    @property
    def measured(self) -> dict[str, Any]:
        """The number of iterates, beside the first weights."""
        return {"iterates": min(self.setting.steps, MOST_ITERATES)}

    @property
    def trained_setting(self) -> Setting:
        """The sampler that keeps these iterates."""
        return keeping(self.setting, self.measured["iterates"])

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """The norm at the first weights and at each kept iterate."""
        assert isinstance(release.posterior, dpbnn.posterior.WeightSamples)
        torch.manual_seed(self.seed)
        model, kept = self.setting.model().to(data.x.device), release.posterior.samples
        every = {name: torch.cat([weight.detach()[None], kept[name]]) for name, weight in model.named_parameters()}

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return cross_entropy(functional_call(model, weights, (data.x,)), data.y)

        def norm(weights: dict[str, Tensor]) -> Tensor:
            gradients = grad(loss)(weights).values()
            return torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt()

        return {"norms": rounded(vmap(norm, chunk_size=25)(every), 6)}


def _template(size: Size) -> Results:
    """A row for each schedule and length; the expectation over runs is taken before the smallest."""
    rows = []
    lengths = (100, 300, 1_000, 3_000, 10_000) if size.is_full else (100, 800)
    for activation, schedule, steps in product(ACTIVATIONS, SCHEDULES, lengths):
        setting = _setting(activation, schedule, steps)
        runs = GradientNorms.of(setting, size)
        rows.append(
            {
                "activation": activation,
                "schedule": schedule,
                "steps": steps,
                **about(setting, size.seeds),
                "epsilon": tightest_epsilon(setting),
                "smallest_mean": Later(runs, _smallest_mean),
                "ours": Later(runs, lambda runs: [min(run["norms"]) for run in runs]),
            }
        )
    return {"most_iterates": MOST_ITERATES, "rows": rows}


def _smallest_mean(runs: list[Outcome]) -> float:
    return round(min(map(statistics.mean, zip(*(run["norms"] for run in runs), strict=True))), 6)


def _setting(activation: str, schedule: str, steps: int) -> Setting:
    powers, longer = SCHEDULES[schedule], steps / FIRST
    rate, clip_norm = RATE * longer ** powers["rate"], CLIP_NORM * longer ** powers["clip_norm"]
    setting = Setting(
        "mnist", "mlp", dpbnn.SGD(rate), RECORDS, BATCH_SIZE, steps * BATCH_SIZE / RECORDS, clip_norm,
        hidden=(HIDDEN,), activation=activation,
    )  # fmt: skip
    noise = langevin_noise(rate / RECORDS, setting) if schedule.startswith("DP-SGLD") else NOISE
    return replace(setting, noise_multiplier=noise)


def _section(results: Results) -> str:
    return markdown(
        f"""
        The smallest norm of the whole gradient among the first weights and up to {results["most_iterates"]} iterates of
        a run, on a network 784-20-10 with 2,000 images of MNIST, batches of 200; of DP-SGD with constant noise
        multiplier 1, of DP-SGLD at temperature 1/2. Theorem 4 says that it falls like T^(-1/4) for DP-SGLD with eta ~
        T^(-1/3) and C ~ T^(-1/6), if every gradient is clipped; here only a part of them is, fewer as training goes on.
        The proof takes s = sqrt(eta) B / (n C) from Theorem 1 as printed, which is upside down. With the algorithm's
        own noise N(0, 2 tau eta) the condition that the proof balances reads eta^2 n^2 C^2 T L + 2 tau eta d T L = L0
        (d weights, smoothness L, first loss L0): its second term needs eta ~ 1/T, and with eta ~ T^(-1/3) it grows like
        T^(2/3). A sampler at a fixed temperature does not come to rest: with ReLU its gradients do not get smaller in
        up to 10,000 steps, and with tanh, whose units saturate as weights grow, they do so much more slowly than that.
        Those of DP-SGD with eta ~ T^(-1/2) go on falling, at first as fast as the line, with ReLU more slowly later;
        its epsilon grows meanwhile. Norms without noise can be shown because these images are public.
        """,
        table_of(
            results["rows"],
            ("units", lambda row: row["activation"]),
            ("schedule", lambda row: row["schedule"]),
            ("T", lambda row: str(row["steps"])),
            ("noise", lambda row: f"{row['settings']['noise_multiplier']:.3g}"),
            ("epsilon", lambda row: epsilon_text(row["epsilon"], 2)),
            ("smallest mean norm", lambda row: number(row["smallest_mean"])),
            ("smallest norm of a run", lambda row: spread(row["ours"])),
        ),
    )


def _picture(results: Results) -> Figure:
    """Both schedules, and the line of the theorem; a panel for each network."""
    figure, axes = style.panels(1, 2, height=75)
    for panel, (activation, name) in zip(axes, ACTIVATIONS.items(), strict=True):
        for schedule, (mark, colour), line in zip(SCHEDULES, MARKS[1:], LINES, strict=False):
            rows = [row for row in results["rows"] if (row["activation"], row["schedule"]) == (activation, schedule)]
            steps = [row["steps"] for row in rows]
            means = [row["smallest_mean"] for row in rows]
            panel.plot(steps, means, marker=mark, markersize=4, color=colour, linestyle=line, label=schedule)
            if schedule.startswith("DP-SGLD"):
                theorem = [means[0] * (length / steps[0]) ** -0.25 for length in steps]
                panel.plot(steps, theorem, color=style.GREY, linestyle=":", label="T^(-1/4), as Theorem 4 has it")
        panel.set_xscale("log")
        log_ticks(panel)
        panel.set(xlabel="steps T (log)", ylabel="smallest gradient norm (log)")
        titled(panel, name)
    style.top_legend(figure, axes[0], columns=2)
    return figure


ITEM = Item("convergence", "Convergence (Theorem 4)", _template, _section, _picture)
