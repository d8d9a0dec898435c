"""DP-SGLD inside the DP-SGD family: accuracy against epsilon over a grid of clip norms and noise, epoch by epoch.

Every DP-SGD run is a Langevin sampler at some temperature; the paper's DP-SGLD is the one at 1/2, whose noise follows
from learning rate and clip norm. The paper compares learning rates of 0.25 for DP-SGD with 1e-5 for DP-SGLD, which is
0.6 in the same units. Here both rates are run both ways.
"""

import statistics
from collections.abc import Sequence
from itertools import product

from dpbnn.experiments.accountants import Epsilons
from dpbnn.experiments.item import Item, Later, Results, Size, each, first
from dpbnn.experiments.pictures import Figure, titled
from dpbnn.experiments.settings import DELTA, without_prior
from dpbnn.experiments.training import IterateAccuracy, steps_of_iterates
from dpbnn.experiments.words import epsilon_text, markdown, number, table
from dpbnn.plots import style

__all__ = ["ITEM"]

CLIP_NORMS, NOISES = (0.5, 1.0, 1.5, 2.0, 5.0), (0.5, 0.9, 1.3, 2.0, 3.0)
RATES = (0.25, 0.6)
"""Learning rates of DP-SGD; those of DP-SGLD are the same over the number of records."""
PANELS = {
    "as in the paper: DP-SGD at 0.25, DP-SGLD at 0.6": (0.25, 0.6),
    "both at 0.25": (0.25, 0.25),
    "both at 0.6": (0.6, 0.6),
}
"""Learning rates of DP-SGD and of DP-SGLD, in units of DP-SGD."""
SHOWN_ACCURACIES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97)


def _template(size: Size) -> Results:
    """For each DP-SGD run of the grid, and each DP-SGLD run, its accuracy and epsilon after each epoch."""
    clip_norms, noises = map(size.thinned, (CLIP_NORMS, NOISES))
    rows = []
    for rate in RATES:
        rows += [_row(rate, clip_norm, noise, size) for clip_norm, noise in product(clip_norms, noises)]
        rows += [_row(rate, clip_norm, None, size) for clip_norm in clip_norms]
    return {"settings": {"batch_size": 256, "epochs": size.epochs, "delta": 1e-5}, "rows": rows}


def _row(rate: float, clip_norm: float, noise: float | None, size: Size) -> Results:
    """A row of DP-SGD with this noise multiplier, or for None of DP-SGLD, whose temperature is 1/2."""
    setting = without_prior(rate, noise, size, clip_norm=clip_norm)
    runs, multiplier = IterateAccuracy.of(setting, size), setting.plan().noise_at(0)
    steps = steps_of_iterates(setting)
    epsilons = Epsilons("by epoch", multiplier, setting.records, setting.batch_size, steps, DELTA)
    return {
        "rate": rate,
        "family": "DP-SGLD" if noise is None else "DP-SGD",
        "clip_norm": clip_norm,
        "noise_multiplier": multiplier,
        "temperature": first(runs, "temperature"),
        "seeds": [run.seed for run in runs],
        "steps": steps,
        "epsilon": Later([epsilons], lambda jobs: [min(point["pld"], point["rdp"]) for point in jobs[0]["epsilon"]]),
        "ours": each(runs, "accuracy"),
    }


def _section(results: Results) -> str:
    """For the epsilon of each DP-SGLD run the best run of each family."""
    parts = []
    headings = [
        *("epsilon", "best DP-SGLD", "its clip norm, noise"),
        *("best DP-SGD", "its clip norm, noise", "its temperature"),
    ]
    for title, (sgd_rate, sgld_rate) in PANELS.items():
        sgd, sgld = _members(results, "DP-SGD", sgd_rate), _members(results, "DP-SGLD", sgld_rate)
        budgets = [row["epsilon"][-1] for row in sgld]
        lines = [[epsilon_text(budget, 3), *_best(sgld, budget)[:2], *_best(sgd, budget)] for budget in budgets]
        parts += [f"*{title}*", table(headings, lines)]
    return markdown(
        """
        Every member of the family is a Langevin sampler at the temperature that its noise implies; DP-SGLD is that at
        1/2. Accuracy is that of the last iterate alone. Each line takes the epsilon of a DP-SGLD run and shows the best
        of both kinds at no larger one, after any epoch and with any clip norm; for DP-SGD also with any noise, so that
        it is picked among five times as many, by the accuracy on the test images, and looks a little better than it is.
        The paper compares rates of 0.25 and 0.6 with each other (1e-5 for DP-SGLD, times 60,000 records); here each is
        also compared with itself.
        """,
        *parts,
    )


def _members(results: Results, family: str, rate: float) -> list[Results]:
    return [row for row in results["rows"] if row["family"] == family and row["rate"] == rate]


def _medians(row: Results) -> list[float]:
    return [statistics.median(accuracies) for accuracies in zip(*row["ours"], strict=True)]


def _best(rows: Sequence[Results], budget: float) -> list[str]:
    """The best accuracy within this budget, after any epoch, and the settings that reach it."""
    points = [
        (accuracy, row)
        for row in rows
        for accuracy, epsilon in zip(_medians(row), row["epsilon"], strict=True)
        if epsilon <= budget
    ]
    if not points:
        return ["-", "-", "-"]
    accuracy, row = max(points, key=lambda point: point[0])
    return [number(accuracy), f"{row['clip_norm']:g}, {row['noise_multiplier']:.3g}", f"{row['temperature']:.3g}"]


def _picture(results: Results) -> Figure:
    """Accuracy against epsilon: a line for each member, a dot for each epoch."""
    figure, axes = style.panels(1, 3, height=65)
    for panel, (title, rates) in zip(axes, PANELS.items(), strict=True):
        looks = {"DP-SGD": (style.GREY, 0.6, 2), "DP-SGLD": (style.VERMILION, 1.4, 3)}
        for rate, (family, (colour, width, order)) in zip(rates, looks.items(), strict=True):
            for index, row in enumerate(_members(results, family, rate)):
                panel.plot(
                    row["epsilon"], _medians(row), marker=".", markersize=3, color=colour, linewidth=width,
                    zorder=order, label=family if index == 0 else None,
                )  # fmt: skip
        panel.set_xscale("log")
        panel.set_yscale("logit", use_overline=False)
        panel.set_yticks(SHOWN_ACCURACIES, [f"{value:g}" for value in SHOWN_ACCURACIES])
        panel.minorticks_off()
        panel.set(xlabel="epsilon (log)", ylabel="test accuracy (logit)")
        titled(panel, title.replace(": ", ":\n"))
    style.top_legend(figure, axes[0], columns=2)
    return figure


ITEM = Item("family", "DP-SGLD in the family of DP-SGD", _template, _section, _picture)
