"""Yes or no from one logit: ``l_i = -log sigmoid(f_i)`` for a one, ``-log sigmoid(-f_i)`` for a zero.

    >>> import torch
    >>> from dpbnn.models.likelihoods import Bernoulli
    >>> Bernoulli().negative_log_likelihood(torch.tensor([[0.0], [50.0]]), torch.tensor([0, 1]), {})
    tensor([6.9315e-01, 1.9287e-22])

It is `Categorical` on the logits ``(0, f)``, with half of the last layer's weights.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods.likelihood import Likelihood, Probabilities, shape_of, wide
from dpbnn.types import Weights

__all__ = ["Bernoulli"]


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Targets 0 or 1, of any type, from one logit: the probability of a one is ``sigmoid(f)``."""

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """``-log sigmoid(f)`` or ``-log sigmoid(-f)``; NaN for a target that is neither 0 nor 1."""
        logits = wide(outputs).squeeze(-1)
        bits = targets.reshape(logits.shape)
        is_one = bits == 1
        losses = -F.logsigmoid(torch.where(is_one, logits, -logits))
        return torch.where(is_one | (bits == 0), losses, math.nan)

    def predictive(self, outputs: Tensor, weights: Weights) -> Probabilities:
        """``[1 - sigmoid(f), sigmoid(f)]``"""
        logits = wide(outputs)
        return Probabilities(torch.cat([-logits, logits], dim=-1).sigmoid())

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Logits ``[records, 1]``, targets ``[records]`` or ``[records, 1]``."""
        if outputs.dim() != 2 or outputs.shape[1] != 1:
            raise DpbnnError(
                f"Bernoulli needs one logit per record, outputs of shape [records, 1], got {shape_of(outputs)}; "
                "for K classes from K outputs use Categorical."
            )
        if targets.shape[1:] not in ((), (1,)) or targets.is_complex():
            raise DpbnnError(
                f"Bernoulli needs targets 0 or 1 of shape [records] or [records, 1], got {targets.dtype} of shape "
                f"{shape_of(targets)}; y.argmax(1) turns one column per class into labels."
            )

    def check_values(self, targets: Tensor, num_outputs: int) -> None:
        """Targets are 0 or 1; NaN, a missing one, passes and contributes nothing."""
        if not bool(((targets == 0) | (targets == 1) | targets.isnan()).all()):
            raise DpbnnError(
                "Targets must be 0 or 1, got others; write two classes as 0 and 1, use Categorical for more of them "
                "and HomoscedasticGaussian for a regression target."
            )

    def synthetic_targets(self, like: Tensor, size: int, num_outputs: int) -> Tensor:
        """Zeros and ones."""
        return torch.randint(0, 2, (size, *like.shape[1:]), device=like.device).to(like.dtype)
