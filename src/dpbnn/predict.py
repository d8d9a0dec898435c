"""The predictive distribution: an average over draws of the weights, and where its uncertainty comes from.

Classification averages *probabilities*, never logits. The entropy of the average splits into the expected entropy
(noise in the data) and the mutual information (doubt about the weights). Regression is a mixture of Gaussians:

    variance = mean of the draws' variances (aleatoric) + variance of the draws' means (epistemic)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.clipping.objective import Objective, evaluating
from dpbnn.likelihoods import Moments, Probabilities
from dpbnn.posterior import Posterior
from dpbnn.types import DpbnnError, Weights

__all__ = ["ClassPrediction", "Prediction", "RealPrediction", "predict"]

ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class ClassPrediction:
    """Of classes; ``[records, classes]`` and ``[records]``."""

    probabilities: Tensor
    expected_entropy: Tensor
    num_draws: int

    @property
    def labels(self) -> Tensor:
        """The most probable class."""
        return self.probabilities.argmax(dim=1)

    @property
    def entropy(self) -> Tensor:
        """All doubt, in nats."""
        return _entropy(self.probabilities)

    @property
    def mutual_information(self) -> Tensor:
        """The doubt that comes from the weights, in nats."""
        return (self.entropy - self.expected_entropy).clamp_min(0.0)


@dataclass(frozen=True)
class RealPrediction:
    """Of real outputs: a mixture with one Gaussian per draw, ``[draws, records, outputs]``."""

    means: Tensor
    variances: Tensor

    @property
    def num_draws(self) -> int:
        """How many draws of the weights stand behind it."""
        return len(self.means)

    @property
    def mean(self) -> Tensor:
        """``[records, outputs]``"""
        return self.means.mean(dim=0)

    @property
    def aleatoric_variance(self) -> Tensor:
        """Noise in the data: the mean of the draws' variances."""
        return self.variances.mean(dim=0)

    @property
    def epistemic_variance(self) -> Tensor:
        """Doubt about the weights: the unbiased variance of the draws' means; zero for one draw."""
        return self.means.var(dim=0) if self.num_draws > 1 else torch.zeros_like(self.means[0])

    @property
    def variance(self) -> Tensor:
        """Both."""
        return self.aleatoric_variance + self.epistemic_variance

    def quantile(self, probability: float) -> Tensor:
        """Where the mixture's distribution function reaches `probability`, by bisection."""
        level = _validate.fraction("probability", probability)
        deviations = self.variances.sqrt()
        reach = -torch.special.ndtri(torch.tensor(min(level, 1 - level), dtype=torch.float64)).to(self.means) + 1
        low, high = (self.means - reach * deviations).amin(dim=0), (self.means + reach * deviations).amax(dim=0)
        for _ in range(40):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - self.means) / deviations).mean(dim=0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds `level` of the probability: (low, high)."""
        _validate.fraction("level", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


Prediction = ClassPrediction | RealPrediction


def predict(objective: Objective, posterior: Posterior, x: Tensor, num_draws: int, seed: int | None) -> Prediction:
    """Average what draws of the weights predict for `x`; results are on the CPU."""
    _validate.whole_number("num_draws", num_draws)
    with evaluating(objective.model):
        draws = list(_draws(objective, posterior, x, num_draws, seed))
    if isinstance(draws[0], Probabilities):
        probabilities = torch.stack([draw.values for draw in draws if isinstance(draw, Probabilities)])
        return ClassPrediction(probabilities.mean(dim=0), _entropy(probabilities).mean(dim=0), len(draws))
    moments = [draw for draw in draws if isinstance(draw, Moments)]
    return RealPrediction(torch.stack([m.mean for m in moments]), torch.stack([m.variance for m in moments]))


@torch.no_grad()
def _draws(
    objective: Objective, posterior: Posterior, x: Tensor, num_draws: int, seed: int | None
) -> Iterator[Probabilities | Moments]:
    for drawn in posterior.draw(num_draws, seed):
        weights = objective.cast(drawn)
        own = {name: drawn[name] for name in objective.likelihood_names}
        parts = [
            objective.likelihood.predictive(_outputs(objective, weights, rows), own) for rows in x.split(ROWS_AT_A_TIME)
        ]
        yield type(parts[0])(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))


def _outputs(objective: Objective, weights: Weights, x: Tensor) -> Tensor:
    outputs = objective.outputs(weights, x)
    if outputs.dim() != 2 or len(outputs) != len(x):
        raise DpbnnError(
            f"X must have one row per record; for shape {list(x.shape)} the model returns {list(outputs.shape)}."
        )
    return outputs


def _entropy(probabilities: Tensor) -> Tensor:
    return torch.special.entr(probabilities).sum(dim=-1).clamp(0.0, math.log(probabilities.shape[-1]))
