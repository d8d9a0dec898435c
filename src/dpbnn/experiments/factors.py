"""What batch size and learning rate do to accuracy and privacy, in DP-SGD and in DP-SGLD.

In DP-SGD the noise multiplier is a setting of its own: 1.3. In DP-SGLD it follows from learning rate and batch size,
s = B / (sqrt(eta) n C), so that larger batches are more private at the same learning rate, and larger rates less.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import dpbnn
from dpbnn.experiments.along_the_way import iterates_of
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import MARKS, titled
from dpbnn.experiments.settings import Setting, langevin_noise
from dpbnn.experiments.words import number, paragraph, private, spread, table, upward
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

BATCH_SIZES, RATES = (64, 128, 256, 512, 1024), (0.05, 0.1, 0.25, 0.5, 1.0)
FACTORS = {"batch_size": "batch size", "rate": "learning rate"}
FAMILIES = ("DP-SGD", "DP-SGLD")


def settings_of(factor: str, family: str, size: Size) -> dict[float, Setting]:
    """By the value of the factor; the other one is as in the paper: batches of 256, learning rate 0.25."""
    step = max(1, (len(RATES) - 1) // max(1, size.grid - 1))
    values: Sequence[float] = (BATCH_SIZES if factor == "batch_size" else RATES)[::step]
    found = {}
    for value in values:
        rate, batch_size = (0.25, int(value)) if factor == "batch_size" else (value, 256)
        own = Setting(
            "mnist", size.network_of_grids, dpbnn.SGD(rate), size.records, batch_size, size.epochs, hidden=size.hidden
        )
        noise = 1.3 if family == "DP-SGD" else langevin_noise(rate / size.records, own)
        found[value] = replace(own, noise_multiplier=noise)
    return found


def jobs(size: Size) -> Sequence[Job]:
    """Both factors in both families."""
    return [
        run
        for factor in FACTORS
        for family in FAMILIES
        for setting in settings_of(factor, family, size).values()
        for run in iterates_of(setting, size)
    ]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """A row for each run of settings."""
    rows = []
    for factor in FACTORS:
        for family in FAMILIES:
            for value, setting in settings_of(factor, family, size).items():
                runs = [found[run.key] for run in iterates_of(setting, size)]
                rows.append(
                    {
                        "factor": factor,
                        "family": family,
                        "value": value,
                        "settings": setting.to_json(),
                        "seeds": [run["seed"] for run in runs],
                        "noise_multiplier": setting.noise_multiplier,
                        "temperature": runs[0]["temperature"],
                        "epsilon": upward(setting.plan().epsilon()),
                        "ours": [run["accuracy"][-1] for run in runs],
                    }
                )
    return {"rows": rows}


def section(found: Results) -> str:
    """A table for each factor."""
    parts = [
        paragraph("""
            On the CNN, clip norm 1.5, the same number of epochs throughout, no prior; accuracy of the last iterate.
            Learning rates are those of DP-SGD; in DP-SGLD eta is the rate over the number of records n. The paper finds
            that larger batches make DP-SGLD more private, against the rule. That is so at a fixed rate, because the
            noise multiplier then grows with the batch: s = B / (sqrt(eta) n C). It is the noise that makes it more
            private, not the batch; DP-SGD with the same noise has the same epsilon.
        """)
    ]
    for factor, name in FACTORS.items():
        rows = [
            [
                f"{row['value']:g}",
                row["family"],
                number(row["noise_multiplier"]),
                f"{row['temperature']:.3g}",
                private(row["epsilon"], 3),
                spread(row["ours"]),
            ]
            for row in found["rows"]
            if row["factor"] == factor
        ]
        parts.append(table([name, "", "noise multiplier", "temperature", "epsilon", "accuracy"], rows))
    return "\n\n".join(parts)


def picture(found: Results) -> "Figure":
    """Accuracy above, epsilon below."""
    from matplotlib.ticker import LogLocator

    figure, axes = style.panels(2, 2, height=50)
    for column, (factor, name) in enumerate(FACTORS.items()):
        above, below = axes[column], axes[2 + column]
        for family, (mark, colour) in zip(FAMILIES, MARKS[1:], strict=False):
            rows = [row for row in found["rows"] if row["factor"] == factor and row["family"] == family]
            values = [row["value"] for row in rows]
            line = "-" if family == "DP-SGD" else "--"
            medians = [statistics.median(row["ours"]) for row in rows]
            above.plot(values, medians, line, marker=mark, markersize=4, color=colour, label=family)
            below.plot(values, [row["epsilon"] for row in rows], line, marker=mark, markersize=4, color=colour)
        for one, label in ((above, "test accuracy"), (below, "epsilon (log)")):
            one.set_xscale("log")
            one.set_xticks(sorted({row["value"] for row in found["rows"] if row["factor"] == factor}))
            one.xaxis.set_major_formatter("{x:g}")
            one.minorticks_off()
            one.set(xlabel=f"{name} (log)", ylabel=label)
        below.set_yscale("log", subs=[])
        below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        below.yaxis.set_major_formatter("{x:g}")
        titled(above, f"by {name}")
    style.top_legend(figure, axes[0], columns=2)
    return figure


ITEM = Item("factors", "Batch size and learning rate", jobs, results, section, picture)
