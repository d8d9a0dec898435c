"""How good a predicted distribution of real numbers is: a mixture of one Gaussian per draw of the weights.

    NLL      = -mean_i log (1/D) sum_d prod_o N(y_io; m_dio, v_dio)
    CRPS     = E|Y - y| - E|Y - Y'| / 2,     Y and Y' two independent draws from the prediction
    coverage = the share of targets inside the central interval that should hold `level` of them

The outputs of a record are independent given the weights, not otherwise, so the NLL is that of the whole record. The
other figures treat each output by itself and average over records and outputs, which should then have one unit.
For a prediction of another library, make a ``RealPrediction(means, variances)``, both ``[draws, records, outputs]``.

    >>> import torch
    >>> from dpbnn.prediction import RealPrediction
    >>> standard_normal = RealPrediction(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
    >>> round(crps(standard_normal, [0.0, 0.0, 0.0]), 4)  # (sqrt(2) - 1) / sqrt(pi)
    0.2337

References: Gneiting and Raftery 2007 (CRPS), Grimit et al. 2006 (its closed form for a mixture of Gaussians).
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.metrics._inputs import as_targets, check_real
from dpbnn.prediction import RealPrediction

__all__ = [
    "CoverageCurve",
    "coverage",
    "coverage_curve",
    "crps",
    "interval_width",
    "negative_log_likelihood",
    "rmse",
]

LEVELS = tuple(percent / 100 for percent in range(5, 100, 5))
VALUES_AT_A_TIME = 2**18
"""The most means that are used at once: a few times 2 MiB of memory, however large the prediction."""


@dataclass(eq=False)
class CoverageCurve:
    """The share of `count` targets that lies in the central intervals of each level."""

    level: Tensor
    coverage: Tensor
    count: int

    @property
    def calibration_error(self) -> float:
        """``|coverage - level|``, averaged over the levels."""
        return float((self.coverage - self.level).abs().mean())


def rmse(prediction: RealPrediction, targets: Any) -> float:
    """The root of the mean squared error of the predicted mean, in the unit of the targets."""
    y = as_targets(targets, prediction)
    return float((prediction.mean.double().cpu() - y).square().mean().sqrt())


def negative_log_likelihood(prediction: RealPrediction, targets: Any) -> float:
    """The mixture's, in nats, averaged over the records; a record's outputs are taken together, as in likelihoods."""
    total = 0.0
    for part, y in _parts(prediction, as_targets(targets, prediction)):
        terms = (y - part.means).square() / part.variances + part.variances.log() + math.log(2 * math.pi)
        total += float((math.log(part.num_draws) - torch.logsumexp(-terms.sum(dim=2) / 2, dim=0)).sum())
    return total / prediction.means.shape[1]


def coverage(prediction: RealPrediction, targets: Any, level: float = 0.95) -> float:
    """The share of targets in the central interval of `level`: below it, intervals are too narrow, above too wide."""
    return float(coverage_curve(prediction, targets, [level]).coverage)


def coverage_curve(prediction: RealPrediction, targets: Any, levels: Sequence[float] = LEVELS) -> CoverageCurve:
    """`coverage` at each of `levels`, by default 0.05, 0.1, ..., 0.95.

    A target is inside if the distribution function F of its prediction has ``|2 F(y) - 1| <= level``.
    """
    asked = torch.tensor([_validate.fraction("level", level) for level in levels], dtype=torch.float64)
    shares = [
        torch.special.ndtr((y - part.means) / part.variances.sqrt()).mean(dim=0).flatten()
        for part, y in _parts(prediction, as_targets(targets, prediction))
    ]
    needed = (2 * torch.cat(shares) - 1).abs().sort().values
    return CoverageCurve(asked, torch.searchsorted(needed, asked, right=True).double() / len(needed), len(needed))


def interval_width(prediction: RealPrediction, level: float = 0.95) -> float:
    """The mean width of the central intervals of `level`, in the unit of the targets."""
    check_real(prediction)
    total = 0.0
    for part, _ in _parts(prediction, prediction.mean):
        low, high = part.interval(level)
        total += float((high - low).sum())
    return total / prediction.mean.numel()


def crps(prediction: RealPrediction, targets: Any) -> float:
    """The continuous ranked probability score, in the unit of the targets; a point prediction's absolute error.

    With ``A(m, v) = E|N(m, v)|``: ``mean_d A(y - m_d, v_d) - mean_de A(m_d - m_e, v_d + v_e) / 2``. Exact; the time
    grows with the square of the number of draws, the memory does not.
    """
    total = 0.0
    for part, y in _parts(prediction, as_targets(targets, prediction)):
        means, variances, draws = part.means, part.variances, part.num_draws
        apart = _mean_absolute(torch.zeros_like(means), 2 * variances).sum(dim=0)
        for shift in range(1, draws):  # each pair of draws once, as the mixture meets it twice
            pairs = _mean_absolute(means[shift:] - means[:-shift], variances[shift:] + variances[:-shift])
            apart += 2 * pairs.sum(dim=0)
        away = _mean_absolute(y - means, variances).mean(dim=0)
        total += float((away - apart / (2 * draws**2)).clamp_min(0.0).sum())
    return total / prediction.mean.numel()


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """``E|N(mean, variance)|``"""
    deviation = variance.sqrt()
    ratio = mean / deviation
    density = torch.exp(-ratio.square() / 2) * math.sqrt(2 / math.pi)
    return deviation * density + mean * torch.erf(ratio / math.sqrt(2))


def _parts(prediction: RealPrediction, targets: Tensor) -> Iterator[tuple[RealPrediction, Tensor]]:
    """Split prediction and targets into some records at a time, in float64 on the CPU."""
    draws, _, outputs = prediction.means.shape
    rows = max(1, VALUES_AT_A_TIME // (draws * outputs))
    pieces = (prediction.means.split(rows, dim=1), prediction.variances.split(rows, dim=1), targets.split(rows))
    for means, variances, y in zip(*pieces, strict=True):
        yield dataclasses.replace(prediction, means=means.cpu().double(), variances=variances.cpu().double()), y
