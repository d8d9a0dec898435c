"""The interface of a likelihood, and its two kinds of prediction."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from dpbnn.types import Weights

__all__ = ["Likelihood", "Moments", "Probabilities", "shape_of", "wide"]


class Probabilities(NamedTuple):
    """Probabilities of the classes, ``[records, classes]``."""

    values: Tensor


class Moments(NamedTuple):
    """Mean and variance of a Gaussian for each output, ``[records, outputs]``."""

    mean: Tensor
    variance: Tensor


class Likelihood(ABC):
    """The interface. Subclasses are frozen dataclasses, or hashable with a ``repr`` by which checkpoints know them."""

    @abstractmethod
    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """One number per record, which depends on that record alone, in float32 or wider.

        It never raises on values: an invalid target gives NaN, and its record then contributes nothing. `weights` holds
        this likelihood's weights by name, in their shapes or with a dimension of records in front.
        """

    def initial_weights(self, num_outputs: int) -> Weights:
        """Weights to learn, clipped and noised with the network's; their names start with ``likelihood.``"""
        return {}

    @abstractmethod
    def predictive(self, outputs: Tensor, weights: Weights) -> Probabilities | Moments:
        """The prediction of one draw of the weights."""

    def check(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027 - nothing to refuse by default
        """Refuse shapes and types of targets that do not fit the outputs, without looking at values."""

    def check_values(self, targets: Tensor, num_outputs: int) -> None:  # noqa: B027 - likewise
        """Refuse target values outside the declared range, for the data holder, before training.

        The error states the expected range and shows no value of the targets.
        """

    def remarks(self, clip_norm: float) -> list[str]:
        """Warnings about results of training with this clip norm."""
        return []

    def synthetic_targets(self, like: Tensor, size: int, num_outputs: int) -> Tensor:
        """`size` random targets of the shape and type of `like`, whose values are ignored.

        A model is tried on them before it sees data. They must be valid and differ: a loss that is always NaN, or that
        hardly depends on the target, would show nothing. The default is normal numbers, or integers below the number
        of outputs (at least 0 and 1).
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
