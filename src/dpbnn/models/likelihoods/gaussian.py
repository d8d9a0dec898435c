"""Real targets with Gaussian noise around the network's output.

    l_i = sum_k (y_ik - m_ik)^2 / (2 std_ik^2) + log std_ik + log(2 pi)/2

Learned standard deviations start near 1: scale the targets with public constants so that this is a sensible start.
Clipping cuts most where residuals are largest, so a small clip norm makes learned noise, and intervals, too small.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods.likelihood import Likelihood, Moments, shape_of, wide
from dpbnn.types import Weights

__all__ = ["LOG_STD_RANGE", "HeteroscedasticGaussian", "HomoscedasticGaussian"]

SUFFICIENT_CLIP_NORM = 5.0
LOG_STD_RANGE = (-10.0, 10.0)
"""The range of a network's log standard deviations: 4.5e-5 to 22,026 in the targets' unit."""


@dataclass(frozen=True)
class HomoscedasticGaussian(Likelihood):
    """``y ~ N(f(x), noise_std^2)``: one noise level for each output, given or learned.

    A learned level is the weight ``likelihood.log_std``, which starts at 0, a standard deviation of 1. Give `noise_std`
    if it is known.
    """

    noise_std: float | None = None

    def __post_init__(self) -> None:
        if self.noise_std is not None:  # as a float: a release writes it to JSON, which has no NumPy numbers
            object.__setattr__(self, "noise_std", _validate.positive("noise_std", self.noise_std))

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """``(y - f)^2 / (2 std^2) + log std + log(2 pi)/2``, summed over the outputs."""
        mean = wide(outputs)
        return _losses(mean, self._log_std(mean, weights), targets)

    def predictive(self, outputs: Tensor, weights: Weights) -> Moments:
        """``N(f, std^2)``"""
        mean = wide(outputs)
        return Moments(mean, torch.exp(2 * self._log_std(mean, weights)).expand_as(mean))

    def initial_weights(self, num_outputs: int) -> Weights:
        """``likelihood.log_std = 0`` for each output, if it is learned."""
        return {"likelihood.log_std": torch.zeros(num_outputs)} if self.noise_std is None else {}

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Outputs ``[records, outputs]``, targets of the same shape, or ``[records]`` for one output."""
        _refuse_labels(self, targets)
        if outputs.dim() != 2 or not _fits(outputs.shape[1], targets):
            raise DpbnnError(
                f"HomoscedasticGaussian needs outputs and targets of shape [records, outputs], got "
                f"{shape_of(outputs)} and {shape_of(targets)}; reshape what differs."
            )

    def remarks(self, clip_norm: float) -> list[str]:
        """A learned noise level under a small clip norm."""
        return _too_narrow(clip_norm) if self.noise_std is None else []

    def _log_std(self, like: Tensor, weights: Weights) -> Tensor:
        if self.noise_std is None:
            return weights["likelihood.log_std"]
        return like.new_full((), math.log(self.noise_std))  # filled on the device: a CUDA graph copies no host number


@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """``y ~ N(m(x), std(x)^2)`` from 2 K outputs: the K means, then the K log standard deviations.

    Log standard deviations are clamped to `LOG_STD_RANGE`, so that neither loss nor prediction overflows; beyond it a
    record no longer moves them.
    """

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """``(y - m)^2 / (2 std^2) + log std + log(2 pi)/2``, summed over the K."""
        return _losses(*self._split(outputs), targets)

    def predictive(self, outputs: Tensor, weights: Weights) -> Moments:
        """``N(m, std^2)``"""
        mean, log_std = self._split(outputs)
        return Moments(mean, torch.exp(2 * log_std))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Outputs ``[records, 2 K]``, targets ``[records, K]``, or ``[records]`` for K = 1."""
        _refuse_labels(self, targets)
        if outputs.dim() != 2 or outputs.shape[1] % 2 or not _fits(outputs.shape[1] // 2, targets):
            raise DpbnnError(
                "HeteroscedasticGaussian needs outputs of shape [records, 2 K], K means and K log standard "
                f"deviations, for targets of shape [records, K], got {shape_of(outputs)} and {shape_of(targets)}; "
                "give the model two outputs for each target value."
            )

    def remarks(self, clip_norm: float) -> list[str]:
        """A learned noise level under a small clip norm."""
        return _too_narrow(clip_norm)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = wide(outputs).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


def _too_narrow(clip_norm: float) -> list[str]:
    """With targets of size 1, records with large residuals have gradients of norm 3 to 10; these show the noise."""
    if clip_norm >= SUFFICIENT_CLIP_NORM:
        return []
    return [
        f"A learned noise level under clip norm {clip_norm:g} comes out too small, and intervals too narrow, since "
        f"clipping cuts most where residuals are largest; use a clip norm of {SUFFICIENT_CLIP_NORM:g} to 10 with a "
        "smaller learning rate, or HomoscedasticGaussian(noise_std=...) with a noise level that is known."
    ]


def _losses(mean: Tensor, log_std: Tensor, targets: Tensor) -> Tensor:
    residuals = (targets.reshape(mean.shape) - mean) * torch.exp(-log_std)
    return (residuals.square() / 2 + log_std + math.log(2 * math.pi) / 2).sum(dim=-1)


def _fits(width: int, targets: Tensor) -> bool:
    return targets.shape[1:] == (width,) or (width == 1 and targets.dim() == 1)


def _refuse_labels(likelihood: Likelihood, targets: Tensor) -> None:
    if not targets.is_floating_point():
        raise DpbnnError(
            f"{type(likelihood).__name__} needs floating-point targets, got {targets.dtype}; convert them, or use "
            "Categorical for class labels (Bernoulli for 0 and 1 from one output)."
        )
