"""How many independent draws a chain is worth.

    ESS = S / (1 + 2 sum_k rho_k)

for S samples with autocorrelations rho_k. The sum stops where the sum of two neighbours is no longer positive, and no
such pair counts for more than the one before, as in a reversible chain (Geyer 1992). A chain that still drifts is worth
a handful of draws, however long it is.

    >>> import torch
    >>> independent = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    >>> 3600 < effective_sample_size(independent).item() < 4400
    True
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["chain_report", "effective_sample_size", "traced_positions"]

ENOUGH = 30
TRACED_WEIGHTS = 256


def effective_sample_size(trace: Tensor) -> Tensor:
    """One number for each coordinate of ``[samples, coordinates]``; a coordinate that never moves is worth 1."""
    count = len(trace)
    centred = trace.double() - trace.double().mean(dim=0)
    if count < 4:
        return torch.ones(trace.shape[1], dtype=torch.float64)
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=0)
    covariance = torch.fft.irfft(spectrum.abs().square(), n=2 * count, dim=0)[:count] / count
    moves = covariance[0] > 0
    correlation = covariance / covariance[0].where(moves, 1.0)
    pairs = correlation[: 2 * (count // 2)].unflatten(0, (-1, 2)).sum(dim=1)
    still_positive = (pairs > 0).cumprod(dim=0).bool()
    falling = torch.cummin(pairs.where(still_positive, 0.0), dim=0).values
    correlated = (2 * falling.sum(dim=0) - 1).clamp_min(1 / count)
    return (count / correlated).clamp(1.0, count).where(moves, 1.0).cpu()


def chain_report(count: int, size: float) -> dict[str, Any]:
    """For a release: `count` samples of a chain are worth `size` independent ones, with a warning if that is little."""
    report: dict[str, Any] = {"kept_samples": count, "effective_sample_size": round(size, 1)}
    if size < min(ENOUGH, count / 2):
        report["warnings"] = [
            f"The {count} kept samples are worth about {size:.1f} independent ones: the chain has hardly moved between "
            "them, so the differences between draws understate the uncertainty about the weights. Private chains are "
            "often this short; their average is still good. More steps at the same rate would help."
        ]
    return report


def traced_positions(shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Which weights to trace, spread evenly over all: for each name, positions along its flattened values."""
    sizes = [shape.numel() for shape in shapes.values()]
    chosen = torch.linspace(0, sum(sizes) - 1, min(sum(sizes), TRACED_WEIGHTS)).long()
    ends = torch.tensor(sizes).cumsum(0)
    return {
        name: chosen[(chosen >= end - size) & (chosen < end)] - (end - size)
        for name, size, end in zip(shapes, sizes, ends, strict=True)
    }
