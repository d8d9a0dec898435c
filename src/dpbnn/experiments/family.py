"""DP-SGLD inside the DP-SGD family: accuracy against epsilon over a grid of clip norms and noise, epoch by epoch.

Every DP-SGD run is a Langevin sampler at some temperature; the paper's DP-SGLD is the one at 1/2, whose noise follows
from learning rate and clip norm. The paper compares learning rates of 0.25 for DP-SGD with 1e-5 for DP-SGLD, which is
0.6 in the same units. Here both rates are run both ways.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import dpbnn
from dpbnn.experiments.along_the_way import iterates_of, steps_of_iterates
from dpbnn.experiments.epsilons import Epsilons
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.settings import DELTA, Setting, langevin_noise
from dpbnn.experiments.words import number, paragraph, private, table
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

CLIP_NORMS, NOISES = (0.5, 1.0, 1.5, 2.0, 5.0), (0.5, 0.9, 1.3, 2.0, 3.0)
RATES = (0.25, 0.6)
"""Of DP-SGD; those of DP-SGLD are these over the number of records."""


def members(rate: float, size: Size) -> dict[str, list[Setting]]:
    """The DP-SGD runs of the grid, and the DP-SGLD runs at temperature 1/2, one for each clip norm."""
    step = max(1, (len(CLIP_NORMS) - 1) // max(1, size.grid - 1))
    clip_norms, noises = CLIP_NORMS[::step], NOISES[::step]
    method = dpbnn.SGD(rate)

    def of(clip_norm: float, noise: float | None) -> Setting:
        own = Setting(
            "mnist", size.network_of_grids, method, size.records, epochs=size.epochs, clip_norm=clip_norm,
            hidden=size.hidden,
        )  # fmt: skip
        return replace(own, noise_multiplier=langevin_noise(rate / size.records, own) if noise is None else noise)

    return {
        "DP-SGD": [of(clip_norm, noise) for clip_norm in clip_norms for noise in noises],
        "DP-SGLD": [of(clip_norm, None) for clip_norm in clip_norms],
    }


def jobs(size: Size) -> Sequence[Job]:
    """The grid at both rates, and how private it is."""
    every = [setting for rate in RATES for settings in members(rate, size).values() for setting in settings]
    return [*(run for setting in every for run in iterates_of(setting, size)), *map(epsilons_of, every)]


def epsilons_of(setting: Setting) -> Epsilons:
    """After each iterate that is kept; clip norm and rate do not matter."""
    assert setting.noise_multiplier is not None
    own = setting.noise_multiplier, setting.records, setting.batch_size
    return Epsilons("by epoch", *own, steps_of_iterates(setting), DELTA)


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """For each member its temperature, and accuracy and epsilon after each epoch."""
    rows = []
    for rate in RATES:
        for family, settings in members(rate, size).items():
            for setting in settings:
                runs = [found[run.key] for run in iterates_of(setting, size)]
                private = epsilons_of(setting)
                rows.append(
                    {
                        "rate": rate,
                        "family": family,
                        "clip_norm": setting.clip_norm,
                        "noise_multiplier": setting.noise_multiplier,
                        "temperature": runs[0]["temperature"],
                        "seeds": [run["seed"] for run in runs],
                        "steps": private.steps,
                        "epsilon": [min(own["pld"], own["rdp"]) for own in found[private.key]["epsilon"]],
                        "ours": [run["accuracy"] for run in runs],
                    }
                )
    return {"settings": {"batch_size": 256, "epochs": size.epochs, "delta": 1e-5}, "rows": rows}


PANELS = {
    "as in the paper: DP-SGD at 0.25, DP-SGLD at 0.6": (0.25, 0.6),
    "both at 0.25": (0.25, 0.25),
    "both at 0.6": (0.6, 0.6),
}
"""Learning rates of DP-SGD and of DP-SGLD, in units of DP-SGD."""
DESCRIBED = ("its clip norm, noise", "its temperature")
SHOWN_ACCURACIES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97)


def section(found: Results) -> str:
    """At the epsilon of each sampler the best of both kinds, at any epoch."""
    parts = [
        paragraph("""
            Every member of the family is a Langevin sampler at the temperature that its noise implies; DP-SGLD is that
            at 1/2. Accuracy is that of the last iterate alone. Each line takes the epsilon of a DP-SGLD run and shows
            the best of both kinds at no larger one, after any epoch and with any clip norm; for DP-SGD also with any
            noise, so that it is picked among five times as many, by the accuracy on the test images, and looks a little
            better than it is. The paper compares rates of 0.25 and 0.6 with each other (1e-5 for DP-SGLD, times 60,000
            records); here each is also compared with itself.
        """)
    ]
    for title, (rate, of_sampler) in PANELS.items():
        others = [row for row in found["rows"] if row["family"] == "DP-SGD" and row["rate"] == rate]
        samplers = [row for row in found["rows"] if row["family"] == "DP-SGLD" and row["rate"] == of_sampler]
        rows = []
        for row in samplers:
            epsilon = row["epsilon"][-1]
            own, better = (_best(_points(kind, epsilon)) for kind in (samplers, others))
            rows.append([private(epsilon, 3), *own[:2], *better])
        columns = ["epsilon", "best DP-SGLD", "its clip norm, noise", "best DP-SGD", *DESCRIBED]
        parts.append(f"*{title}*\n\n{table(columns, rows)}")
    return "\n\n".join(parts)


def _medians(row: Results) -> list[float]:
    return [statistics.median(own) for own in zip(*row["ours"], strict=True)]


def _points(rows: Sequence[Results], at_most: float) -> list[tuple[float, Results]]:
    """Accuracies that are reached within this epsilon."""
    return [
        (accuracy, row)
        for row in rows
        for accuracy, epsilon in zip(_medians(row), row["epsilon"], strict=True)
        if epsilon <= at_most
    ]


def _best(points: Sequence[tuple[float, Results]]) -> list[str]:
    if not points:
        return ["-", "-", "-"]
    accuracy, row = max(points, key=lambda point: point[0])
    return [number(accuracy), f"{row['clip_norm']:g}, {row['noise_multiplier']:.3g}", f"{row['temperature']:.3g}"]


def picture(found: Results) -> "Figure":
    """Accuracy against epsilon: a line for each member, a dot for each epoch."""
    figure, axes = style.panels(1, 3, height=65)
    for one, (title, (rate, of_sampler)) in zip(axes, PANELS.items(), strict=True):
        kinds = {"DP-SGD": (rate, style.GREY, 0.6, 2), "DP-SGLD": (of_sampler, style.VERMILION, 1.4, 3)}
        for family, (own, colour, width, order) in kinds.items():
            rows = [row for row in found["rows"] if row["family"] == family and row["rate"] == own]
            for index, row in enumerate(rows):
                one.plot(
                    row["epsilon"], _medians(row), marker=".", markersize=3, color=colour, linewidth=width,
                    zorder=order, label=family if index == 0 else None,
                )  # fmt: skip
        one.set_xscale("log")
        one.set_yscale("logit", use_overline=False)
        one.set_yticks(SHOWN_ACCURACIES, [f"{value:g}" for value in SHOWN_ACCURACIES])
        one.minorticks_off()
        one.set(xlabel="epsilon (log)", ylabel="test accuracy (logit)")
        titled(one, title.replace(": ", ":\n"))
    style.top_legend(figure, axes[0], columns=2)
    return figure


ITEM = Item("family", "DP-SGLD in the family of DP-SGD", jobs, results, section, picture)
