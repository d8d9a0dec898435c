"""The interface of a likelihood, and the two kinds of prediction that one can make."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from dpbnn.types import Weights

__all__ = ["Likelihood", "Moments", "Probabilities", "shape_of", "wide"]


class Probabilities(NamedTuple):
    """Of the classes, ``[records, classes]``."""

    values: Tensor


class Moments(NamedTuple):
    """Of a Gaussian for each output, ``[records, outputs]``."""

    mean: Tensor
    variance: Tensor


class Likelihood(ABC):
    """The interface; `dpbnn.models.likelihoods` says what a likelihood of your own must do."""

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
    def predictive(self, outputs: Tensor, weights: Weights) -> Probabilities | Moments:
        """What one draw of the weights predicts."""

    def check(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027 - nothing to refuse by default
        """Refuse shapes and types of targets that do not fit the outputs, without looking at values."""

    def check_values(self, targets: Tensor, num_outputs: int) -> None:  # noqa: B027 - likewise
        """Refuse target values outside the declared range, for the data holder, before training.

        The error says what was expected, and nothing that was read from the targets.
        """

    def remarks(self, clip_norm: float) -> list[str]:
        """What to know before trusting a result that was trained with this clip norm."""
        return []

    def synthetic_targets(self, like: Tensor, size: int, num_outputs: int) -> Tensor:
        """`size` random targets of the shape and type of `like`, whose values are not looked at.

        A model is tried on them before it sees data. They must be sensible and differ: a loss that is always NaN, or
        that hardly depends on the target, would show nothing. The default is normal numbers, or whole numbers from 0
        to one less than the number of outputs (at least 0 and 1).
        """
        shape = (size, *like.shape[1:])
        if like.is_floating_point():
            return torch.randn(shape, device=like.device).to(like.dtype)
        return torch.randint(0, max(2, num_outputs), shape, device=like.device).to(like.dtype)


def wide(outputs: Tensor) -> Tensor:
    """float32 or wider, whatever the network computes in."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def shape_of(records: Tensor) -> str:
    """A shape for messages, without the number of records."""
    return f"[{', '.join(['records', *map(str, records.shape[1:])])}]"
