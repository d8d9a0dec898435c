"""Predictions: averages over draws of the weights, with uncertainty split by its source.

Classification averages *probabilities*, never logits. The entropy of the average splits into the expected entropy
(noise in the data) and the mutual information (uncertainty about the weights):

    H(mean_s p_s) = mean_s H(p_s) + mutual information

Regression is a mixture with one Gaussian per draw:

    variance = mean of the draws' variances (aleatoric) + unbiased variance of the draws' means (epistemic)

    >>> agree, disagree = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]  # two draws each, for one record each
    >>> draws = torch.tensor([agree, disagree]).transpose(0, 1)
    >>> ClassPrediction(draws.mean(dim=0), entropy(draws).mean(dim=0), num_draws=2).mutual_information
    tensor([0.0000, 0.6931])
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.seeds import derived_seed

__all__ = ["ClassPrediction", "Prediction", "RealPrediction", "checked_seed", "entropy", "joined", "within_range"]


@dataclass(eq=False, repr=False)
class ClassPrediction:
    """A prediction of classes: probabilities ``[records, classes]``, all else ``[records]``.

    `num_draws` is less than `requested_draws` if the posterior holds fewer. With `keep_draws`, `draws` has the
    probabilities of each draw, ``[draws, records, classes]``.
    """

    probabilities: Tensor
    expected_entropy: Tensor
    num_draws: int
    requested_draws: int | None = None
    draws: Tensor | None = None

    def __repr__(self) -> str:
        records, classes = self.probabilities.shape
        return f"ClassPrediction({records} records, {classes} classes, {self.num_draws} draws)"

    @property
    def labels(self) -> Tensor:
        """The most probable class of each record."""
        return self.probabilities.argmax(dim=1)

    @property
    def entropy(self) -> Tensor:
        """The total uncertainty, in nats: from 0 to the logarithm of the number of classes."""
        return entropy(self.probabilities)

    @property
    def mutual_information(self) -> Tensor:
        """The uncertainty about the weights, in nats; never negative."""
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    def sample(self, num_samples: int, seed: int | None = None) -> Tensor:
        """Possible labels, ``[num_samples, records]``, drawn for each record independently."""
        count = _validate.whole_number("num_samples", num_samples)
        bad = ~self.probabilities.isfinite().all(dim=1)
        if bad.any():
            raise DpbnnError(f"Probabilities must be finite, those of record {int(bad.nonzero()[0])} are not.")
        if len(self.probabilities) == 0:
            return torch.empty(count, 0, dtype=torch.long)
        generator = torch.Generator().manual_seed(checked_seed(seed))
        return torch.multinomial(self.probabilities, count, replacement=True, generator=generator).T


@dataclass(eq=False, repr=False)
class RealPrediction:
    """A prediction of real outputs: a mixture with one Gaussian per draw, ``[draws, records, outputs]``.

    `num_draws` is less than `requested_draws` if the posterior holds fewer.
    """

    means: Tensor
    variances: Tensor
    requested_draws: int | None = None

    def __repr__(self) -> str:
        draws, records, outputs = self.means.shape
        return f"RealPrediction({records} records, {outputs} outputs, {draws} draws)"

    @property
    def num_draws(self) -> int:
        """How many draws of the weights were averaged."""
        return len(self.means)

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, ``[records, outputs]``."""
        return self.means.mean(dim=0, dtype=torch.float64).to(self.means.dtype)

    @property
    def aleatoric_variance(self) -> Tensor:
        """Noise in the data: the mean of the draws' variances."""
        return self.variances.mean(dim=0, dtype=torch.float64).to(self.variances.dtype)

    @property
    def epistemic_variance(self) -> Tensor:
        """Uncertainty about the weights: the unbiased variance of the draws' means; zero for one draw."""
        if self.num_draws == 1:
            return torch.zeros_like(self.means[0])
        return self.means.double().var(dim=0).to(self.means.dtype)

    @property
    def variance(self) -> Tensor:
        """The sum of the aleatoric and the epistemic variance."""
        return self.aleatoric_variance + self.epistemic_variance

    def quantile(self, probability: float) -> Tensor:
        """The value at which the mixture's distribution function reaches `probability`, by bisection."""
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

    def sample(self, num_samples: int, seed: int | None = None) -> Tensor:
        """Possible targets, ``[num_samples, records, outputs]``.

        Each sample takes one draw of the weights for all records, and independent noise for each record and output.
        """
        count = _validate.whole_number("num_samples", num_samples)
        generator = torch.Generator().manual_seed(checked_seed(seed))
        chosen = torch.randint(self.num_draws, (count,), generator=generator)
        noise = torch.randn((count, *self.means.shape[1:]), generator=generator, dtype=self.means.dtype)
        return self.means[chosen] + self.variances[chosen].sqrt() * noise


Prediction = ClassPrediction | RealPrediction

DIMENSION_OF_RECORDS = {"probabilities": 0, "expected_entropy": 0, "draws": 1, "means": 1, "variances": 1}


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum_k p_k log p_k`` over the last dimension; rounding never takes it out of its range."""
    nats = torch.special.entr(probabilities).sum(dim=-1, dtype=torch.float64)
    return within_range(nats, probabilities.shape[-1]).to(probabilities.dtype)


def within_range(nats: Tensor, classes: int) -> Tensor:
    """The entropy without rounding errors below 0 or above that of equal probabilities."""
    return nats.clamp(0.0, math.log(classes))


def joined(parts: Sequence[Prediction]) -> Prediction:
    """One prediction from predictions for consecutive records by the same draws."""
    if len(parts) == 1:
        return parts[0]
    tensors: Any = {
        name: torch.cat([getattr(part, name) for part in parts], dim)
        for name, dim in DIMENSION_OF_RECORDS.items()
        if getattr(parts[0], name, None) is not None
    }
    return replace(parts[0], **tensors)


def checked_seed(seed: int | None) -> int:
    """The seed, if it can be one; a fresh one in place of None."""
    if seed is None:
        return derived_seed(None)
    number = _validate.whole_number("seed", seed, at_least=0)
    return number if number < 2**63 else _validate.refuse("seed", "< 2**63", seed)
