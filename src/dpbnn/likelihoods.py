"""What the network's output says about a target: ``l_i(w) = -log p(y_i | f(x_i; w))``.

    >>> import torch, dpbnn
    >>> dpbnn.Categorical().negative_log_likelihood(torch.zeros(1, 4), torch.tensor([2]), {})
    tensor([1.3863])

A likelihood of one's own is a subclass of `Likelihood` with `negative_log_likelihood`, and `initial_weights`
if it has weights to learn. Those are trained like the network's: clipped and noised jointly with them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dpbnn import _validate
from dpbnn.types import DpbnnError, Weights

__all__ = ["Categorical", "HomoscedasticGaussian", "Likelihood", "Moments", "Probabilities"]


class Probabilities(NamedTuple):
    """Of the classes, ``[records, classes]``."""

    values: Tensor


class Moments(NamedTuple):
    """Of a Gaussian for each output, ``[records, outputs]``."""

    mean: Tensor
    variance: Tensor


class Likelihood(ABC):
    """The interface; see the module's docstring."""

    @abstractmethod
    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """One number per record. It must not mix records, nor raise on values: a bad target gives NaN.

        `weights` holds this likelihood's own weights by name; each has its own shape, or one copy per record
        in front of it.
        """

    def initial_weights(self, num_outputs: int) -> Weights:
        """The weights that are learned with the network's, under names that start with ``likelihood.``"""
        return {}

    @abstractmethod
    def predictive(self, outputs: Tensor, weights: Weights) -> "Probabilities | Moments":
        """What one draw of the weights predicts."""

    def check(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027 - nothing to refuse by default
        """Refuse shapes and types of targets that do not fit the outputs; values are not looked at."""

    def check_values(self, targets: Tensor, num_outputs: int) -> None:  # noqa: B027 - likewise
        """Refuse target values outside the declared range, for the data holder, before training."""


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Classes 0 to K-1 from K logits: ``-log softmax(f)_y``. K, the width of the output, is public."""

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """Cross entropy; NaN for a label that is no class."""
        num_classes = outputs.shape[-1]
        is_class = (targets >= 0) & (targets < num_classes)
        labels = targets.long().clamp(0, num_classes - 1)
        losses = F.cross_entropy(_wide(outputs), labels, reduction="none")
        return torch.where(is_class, losses, math.nan)

    def predictive(self, outputs: Tensor, weights: Weights) -> Probabilities:
        """``softmax(f)``"""
        return Probabilities(_wide(outputs).softmax(dim=-1))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Logits ``[records, classes]``, labels ``[records]`` of an integer type."""
        if outputs.dim() != 2:
            raise DpbnnError(
                f"Categorical needs outputs of shape [records, classes], got {list(outputs.shape)}; "
                "flatten the model's output."
            )
        if targets.dim() != 1 or targets.is_floating_point() or targets.is_complex():
            raise DpbnnError(
                f"Categorical needs integer labels of shape [records], got {targets.dtype} of shape "
                f"{['records', *targets.shape[1:]]}; y.astype(int), y.ravel() or y.argmax(1) may give them. For a "
                "regression target use HomoscedasticGaussian."
            )

    def check_values(self, targets: Tensor, num_outputs: int) -> None:
        """Labels lie in 0 to K-1."""
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < num_outputs:
            raise DpbnnError(
                f"Labels must lie in 0 to {num_outputs - 1}, the model's {num_outputs} classes, got "
                f"{int(targets.min())} to {int(targets.max())}; K classes are numbered from 0 and need K outputs."
            )


@dataclass(frozen=True)
class HomoscedasticGaussian(Likelihood):
    """``y ~ N(f(x), noise_std^2)``: one noise level for each output, given or learned.

    A learned one is the weight ``likelihood.log_std``, which starts at 0 (a standard deviation of 1): scale the
    targets with public constants so that this is a sensible start. Clipping cuts most where residuals are largest, so
    that a learned noise level under a small clip norm comes out too small, and intervals too narrow: give a larger clip
    norm, or `noise_std`.
    """

    noise_std: float | None = None

    def __post_init__(self) -> None:
        if self.noise_std is not None:
            _validate.positive("noise_std", self.noise_std)

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """``(y - f)^2 / (2 std^2) + log std + log(2 pi)/2``, summed over the outputs."""
        mean = _wide(outputs)
        log_std = self._log_std(mean, weights)
        residuals = (targets.reshape(mean.shape) - mean) * torch.exp(-log_std)
        losses = residuals.square() / 2 + log_std + math.log(2 * math.pi) / 2
        return losses.sum(dim=-1)

    def predictive(self, outputs: Tensor, weights: Weights) -> Moments:
        """``N(f, std^2)``"""
        mean = _wide(outputs)
        return Moments(mean, torch.exp(2 * self._log_std(mean, weights)).expand_as(mean))

    def initial_weights(self, num_outputs: int) -> Weights:
        """``likelihood.log_std = 0`` for each output, if it is learned."""
        return {"likelihood.log_std": torch.zeros(num_outputs)} if self.noise_std is None else {}

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Outputs ``[records, outputs]``, targets of the same shape, or ``[records]`` for one output."""
        fits = targets.shape == outputs.shape or (outputs.shape[1:] == (1,) and targets.shape == outputs.shape[:1])
        if outputs.dim() != 2 or not fits:
            raise DpbnnError(
                f"HomoscedasticGaussian needs outputs and targets of shape [records, outputs], got "
                f"{['records', *outputs.shape[1:]]} and {['records', *targets.shape[1:]]}; reshape what differs."
            )
        if not targets.is_floating_point():
            raise DpbnnError(
                f"HomoscedasticGaussian needs floating-point targets, got {targets.dtype}; convert them, or use "
                "Categorical for class labels."
            )

    def _log_std(self, like: Tensor, weights: Weights) -> Tensor:
        return weights["likelihood.log_std"] if self.noise_std is None else like.new_tensor(math.log(self.noise_std))


def _wide(outputs: Tensor) -> Tensor:
    """float32 or wider, whatever the network computes in."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
