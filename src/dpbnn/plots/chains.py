"""Pictures of a sampler's chain."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dpbnn.errors import DpbnnError
from dpbnn.metrics._inputs import as_numbers
from dpbnn.plots.style import BLUE, GREEN, ORANGE, VERMILION, finish, names_or, start

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["chain_trace"]


def chain_trace(samples: Any, names: Sequence[str] | None = None, axes: "Axes | None" = None) -> "Figure":
    """The kept samples of a chain, ``[samples, coordinates]``, and how many independent draws each is worth.

    ``release.posterior.trace`` of an SGLD release has that shape.
    At most four coordinates are drawn, spread evenly; ``names`` has one name for each coordinate of `samples`.
    """
    from dpbnn.posterior.effective_sample_size import effective_sample_size

    trace = as_numbers("samples", samples).double()
    if trace.dim() != 2 or trace.shape[1] == 0 or not trace.isfinite().all():
        raise DpbnnError(f"samples must be finite, shape [samples, coordinates], got shape {list(trace.shape)}.")
    figure, axes = start(axes)
    colours = (BLUE, ORANGE, GREEN, VERMILION)
    shown = torch.linspace(0, trace.shape[1] - 1, min(trace.shape[1], len(colours))).long().unique().tolist()
    called = names_or(names, [f"weight {column}" for column in range(trace.shape[1])])
    worth = effective_sample_size(trace)
    for colour, column in zip(colours, shown, strict=False):
        label = f"{called[column]}: ESS {float(worth[column]):.0f}"
        axes.plot(trace[:, column].numpy(), color=colour, linewidth=0.8, label=label)
    axes.set(xlabel="kept sample (number)", ylabel="value of the weight")
    axes.margins(x=0)
    columns = 2 if max(len(called[column]) for column in shown) < 16 else 1
    finish(axes, f"{len(trace):,} samples, worth {float(worth.median()):,.0f} independent ones (median)", columns)
    return figure
