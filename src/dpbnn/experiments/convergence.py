"""Theorem 4: how the smallest gradient norm of a run falls with the number of steps T, and how it does not.

The theorem says T^(-1/4) for DP-SGLD with eta ~ T^(-1/3) and C ~ T^(-1/6). It rests on Theorem 1 with its noise upside
down. With the noise of the algorithm itself, N(0, eta), its condition reads

    eta^2 n^2 C^2 T L + 2 tau eta d T L = L0,

whose second term needs eta ~ 1/T; at a fixed temperature no schedule drives the gradient to zero, because a sampler
does not come to rest. DP-SGD with constant noise multiplier and clip norm and eta ~ T^(-1/2) does.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import dpbnn
from dpbnn.data import Images
from dpbnn.experiments.along_the_way import keeping
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import LINES, MARKS, titled
from dpbnn.experiments.seeded_run import SeededRun
from dpbnn.experiments.settings import Setting, langevin_noise
from dpbnn.experiments.training import images, trained
from dpbnn.experiments.words import number, paragraph, private, spread, table, upward
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

RECORDS, BATCH_SIZE, HIDDEN, MOST_ITERATES = 2_000, 200, 20, 500
FIRST = 100
"""The number of steps that both schedules have the same rate and clip norm at."""
SCHEDULES = {
    "DP-SGLD, eta ~ T^(-1/3), C ~ T^(-1/6)": {"rate": -1 / 3, "clip_norm": -1 / 6},
    "DP-SGD, eta ~ T^(-1/2), constant C and noise": {"rate": -1 / 2, "clip_norm": 0.0},
}
"""Powers of T: those of the theorem, and those that hold."""
RATE, CLIP_NORM = 0.5, 1.0
"""Of FIRST steps, in units of DP-SGD."""
ACTIVATIONS = {"relu": "ReLU, as in the paper", "tanh": "tanh"}
NOISE = 1.0
"""Of DP-SGD; that of DP-SGLD follows from its rate."""


class GradientNorms(SeededRun):
    """The norm of the mean gradient over all training images, at iterates all along a run; a job."""

    what = "gradient norms"

    @property
    def measured(self) -> dict[str, Any]:
        """At so many iterates."""
        return {"iterates": iterates_of(self.setting.steps)}

    @classmethod
    def run_all(cls, jobs: "Sequence[GradientNorms]", device: str) -> Iterator[Found]:
        """All at once, where a GPU can."""
        every = images("mnist", jobs[0].size, device)
        own = Images("mnist", every.x[:RECORDS], every.y[:RECORDS], every.x_test, every.y_test)
        runs = [(keeping(job.setting, iterates_of(job.setting.steps)), job.seed) for job in jobs]
        for job, release in zip(jobs, trained(runs, own, device), strict=True):
            torch.manual_seed(job.seed)
            first = job.setting.model().to(device)
            yield {"seed": job.seed, "norms": [round(value, 6) for value in _norms(first, release, own)]}


def iterates_of(steps: int) -> int:
    """How many are looked at, beside the first weights."""
    return min(steps, MOST_ITERATES)


def _norms(first: nn.Module, release: dpbnn.Release, own: Images) -> list[float]:
    """Of the mean gradient at the first weights, and at all that were kept."""
    assert isinstance(release.posterior, dpbnn.posterior.WeightSamples)
    kept = release.posterior.samples
    every = {name: torch.cat([weight.detach()[None], kept[name]]) for name, weight in first.named_parameters()}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(first, weights, (own.x,)), own.y)

    def norm(weights: dict[str, Tensor]) -> Tensor:
        gradients = grad(loss)(weights)
        return torch.stack([own.double().square().sum() for own in gradients.values()]).sum().sqrt()

    norms: list[float] = vmap(norm, chunk_size=25)(every).tolist()
    return norms


def runs_of(activation: str, schedule: str, steps: int, size: Size) -> list[GradientNorms]:
    """One for each seed."""
    powers, longer = SCHEDULES[schedule], steps / FIRST
    rate, clip_norm = RATE * longer ** powers["rate"], CLIP_NORM * longer ** powers["clip_norm"]
    plain = Setting(
        "mnist", "mlp", dpbnn.SGD(rate), RECORDS, BATCH_SIZE, steps * BATCH_SIZE / RECORDS, clip_norm,
        hidden=(HIDDEN,), activation=activation,
    )  # fmt: skip
    noise = langevin_noise(rate / RECORDS, plain) if schedule.startswith("DP-SGLD") else NOISE
    return [GradientNorms(replace(plain, noise_multiplier=noise), seed, size) for seed in range(size.seeds)]


def lengths(size: Size) -> Sequence[int]:
    """Numbers of steps."""
    return (100, 300, 1_000, 3_000, 10_000) if size.is_full else (100, 800)


def jobs(size: Size) -> Sequence[Job]:
    """Both schedules at all lengths, for both networks."""
    return [
        run
        for steps in lengths(size)
        for activation in ACTIVATIONS
        for schedule in SCHEDULES
        for run in runs_of(activation, schedule, steps, size)
    ]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each schedule and length; the expectation over runs is taken before the smallest."""
    rows = []
    for activation, schedule, steps in product(ACTIVATIONS, SCHEDULES, lengths(size)):
        runs = runs_of(activation, schedule, steps, size)
        own, setting = [found[run.key] for run in runs], runs[0].setting
        means = [statistics.mean(column) for column in zip(*(one["norms"] for one in own), strict=True)]
        rows.append(
            {
                "activation": activation,
                "schedule": schedule,
                "steps": steps,
                "settings": setting.to_json(),
                "seeds": [one["seed"] for one in own],
                "epsilon": upward(setting.plan().epsilon()),
                "smallest_mean": round(min(means), 6),
                "ours": [min(one["norms"]) for one in own],
            }
        )
    return {"most_iterates": MOST_ITERATES, "rows": rows}


def section(found: Results) -> str:
    """A table, and what it says."""
    text = paragraph(f"""
        The smallest norm of the whole gradient among the first weights and up to {found["most_iterates"]} iterates of a
        run, on a network 784-20-10 with 2,000 images of MNIST, batches of 200; of DP-SGD with constant noise multiplier
        1, of DP-SGLD at temperature 1/2. Theorem 4 says that it falls like T^(-1/4) for DP-SGLD with eta ~ T^(-1/3) and
        C ~ T^(-1/6), if every gradient is clipped; here only a part of them is, fewer as training goes on. The proof
        takes s = sqrt(eta) B / (n C) from Theorem 1 as printed, which is upside down. With the algorithm's own noise
        N(0, 2 tau eta) the condition that the proof balances reads eta^2 n^2 C^2 T L + 2 tau eta d T L = L0 (d weights,
        smoothness L, first loss L0): its second term needs eta ~ 1/T, and with eta ~ T^(-1/3) it grows like T^(2/3). A
        sampler at a fixed temperature does not come to rest: with ReLU its gradients do not get smaller in up to 10,000
        steps, and with tanh, whose units saturate as weights grow, they do so much more slowly than that. Those of
        DP-SGD with eta ~ T^(-1/2) go on falling, at first as fast as the line, with ReLU more slowly later; its epsilon
        grows meanwhile. Norms without noise can be shown because these images are public.
    """)
    rows = [
        [
            row["activation"],
            row["schedule"],
            str(row["steps"]),
            f"{row['settings']['noise_multiplier']:.3g}",
            private(row["epsilon"], 2),
            number(row["smallest_mean"]),
            spread(row["ours"]),
        ]
        for row in found["rows"]
    ]
    columns = ["units", "schedule", "T", "noise", "epsilon", "smallest mean norm", "smallest norm of a run"]
    return f"{text}\n\n{table(columns, rows)}"


def picture(found: Results) -> "Figure":
    """Both schedules, and the line of the theorem; a panel for each network."""
    from matplotlib.ticker import LogLocator

    figure, axes = style.panels(1, 2, height=75)
    for one, (activation, name) in zip(axes, ACTIVATIONS.items(), strict=True):
        for schedule, (mark, colour), line in zip(SCHEDULES, MARKS[1:], LINES, strict=False):
            rows = [row for row in found["rows"] if (row["activation"], row["schedule"]) == (activation, schedule)]
            steps = [row["steps"] for row in rows]
            means = [row["smallest_mean"] for row in rows]
            one.plot(steps, means, marker=mark, markersize=4, color=colour, linestyle=line, label=schedule)
            if schedule.startswith("DP-SGLD"):
                told = [means[0] * (own / steps[0]) ** -0.25 for own in steps]
                one.plot(steps, told, color=style.GREY, linestyle=":", label="T^(-1/4), as Theorem 4 has it")
        one.set_xscale("log")
        one.set_yscale("log", subs=[])
        one.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.yaxis.set_major_formatter("{x:g}")
        one.set(xlabel="steps T (log)", ylabel="smallest gradient norm (log)")
        titled(one, name)
    style.top_legend(figure, axes[0], columns=2)
    return figure


ITEM = Item("convergence", "Convergence (Theorem 4)", jobs, results, section, picture)
