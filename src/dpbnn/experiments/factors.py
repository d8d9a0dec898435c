"""What batch size and learning rate do to accuracy and privacy, in DP-SGD and in DP-SGLD.

In DP-SGD the noise multiplier is a free setting, 1.3. In DP-SGLD it follows from learning rate and batch size,
s = B / (sqrt(eta) n C), so that larger batches are more private at the same learning rate, and larger rates less.
"""

import statistics
from itertools import product

from dpbnn.experiments.item import Item, Later, Results, Size, first
from dpbnn.experiments.pictures import MARKS, Figure, log_ticks, titled
from dpbnn.experiments.settings import without_prior
from dpbnn.experiments.training import IterateAccuracy, about, tightest_epsilon
from dpbnn.experiments.words import epsilon_text, markdown, number, spread, table_of
from dpbnn.plots import style

__all__ = ["ITEM"]

VALUES = {"batch_size": (64, 128, 256, 512, 1024), "rate": (0.05, 0.1, 0.25, 0.5, 1.0)}
FACTORS = {"batch_size": "batch size", "rate": "learning rate"}
FAMILIES = ("DP-SGD", "DP-SGLD")
PAPERS_RATE = 0.25


def _template(size: Size) -> Results:
    """A row for each value of each factor, in both families."""
    rows = []
    for factor, family in product(FACTORS, FAMILIES):
        for value in size.thinned(VALUES[factor]):
            rate, batch_size = (PAPERS_RATE, value) if factor == "batch_size" else (value, 256)
            setting = without_prior(rate, 1.3 if family == "DP-SGD" else None, size, batch_size=batch_size)
            runs = IterateAccuracy.of(setting, size)
            rows.append(
                {
                    "factor": factor,
                    "family": family,
                    "value": value,
                    **about(setting, size.seeds),
                    "noise_multiplier": setting.noise_multiplier,
                    "temperature": first(runs, "temperature"),
                    "epsilon": tightest_epsilon(setting),
                    "ours": Later(runs, lambda runs: [run["accuracy"][-1] for run in runs]),
                }
            )
    return {"rows": rows}


def _section(results: Results) -> str:
    tables = [
        table_of(
            [row for row in results["rows"] if row["factor"] == factor],
            (name, lambda row: f"{row['value']:g}"),
            ("", lambda row: row["family"]),
            ("noise multiplier", lambda row: number(row["noise_multiplier"])),
            ("temperature", lambda row: f"{row['temperature']:.3g}"),
            ("epsilon", lambda row: epsilon_text(row["epsilon"], 3)),
            ("accuracy", lambda row: spread(row["ours"])),
        )
        for factor, name in FACTORS.items()
    ]
    return markdown(
        """
        On the CNN, clip norm 1.5, the same number of epochs throughout, no prior; accuracy of the last iterate.
        Learning rates are those of DP-SGD; in DP-SGLD eta is the rate over the number of records n. The paper finds
        that larger batches make DP-SGLD more private, against the rule. That is so at a fixed rate, because the noise
        multiplier then grows with the batch: s = B / (sqrt(eta) n C). It is the noise that makes it more private, not
        the batch; DP-SGD with the same noise has the same epsilon.
        """,
        *tables,
    )


def _picture(results: Results) -> Figure:
    figure, axes = style.panels(2, 2, height=50)
    for (factor, name), above, below in zip(FACTORS.items(), axes[:2], axes[2:], strict=True):
        for family, line, (mark, colour) in zip(FAMILIES, ("-", "--"), MARKS[1:3], strict=True):
            rows = [row for row in results["rows"] if row["factor"] == factor and row["family"] == family]
            values = [row["value"] for row in rows]
            medians = [statistics.median(row["ours"]) for row in rows]
            above.plot(values, medians, line, marker=mark, markersize=4, color=colour, label=family)
            below.plot(values, [row["epsilon"] for row in rows], line, marker=mark, markersize=4, color=colour)
        for panel, label in ((above, "test accuracy"), (below, "epsilon (log)")):
            panel.set_xscale("log")
            panel.set_xticks(sorted({row["value"] for row in results["rows"] if row["factor"] == factor}))
            panel.xaxis.set_major_formatter("{x:g}")
            panel.minorticks_off()
            panel.set(xlabel=f"{name} (log)", ylabel=label)
        log_ticks(below)
        titled(above, f"by {name}")
    style.top_legend(figure, axes[0], columns=2)
    return figure


ITEM = Item("factors", "Batch size and learning rate", _template, _section, _picture)
