"""One class out of several: ``l_i = -log softmax(f_i)_{y_i}``."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import cross_entropy
from dpbnn.models.likelihoods.likelihood import Likelihood, Probabilities, shape_of, wide
from dpbnn.types import Weights

__all__ = ["Categorical"]

FEW_CLASSES = 32
"""With at most this many classes, a CPU computes softmax faster along the records."""


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Classes 0 to K-1 from K logits: ``-log softmax(f)_y``. K, the width of the output, is public."""

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """Cross entropy; not finite, nor its gradient, for a label that is no class."""
        logits = wide(outputs)
        if cross_entropy.is_used_for(logits, targets):
            return cross_entropy.cross_entropy(logits, targets)
        labels = targets.long().clamp(0, outputs.shape[-1] - 1)
        return F.cross_entropy(logits, labels, reduction="none") / (labels == targets)

    def predictive(self, outputs: Tensor, weights: Weights) -> Probabilities:
        """``softmax(f)``"""
        logits = wide(outputs)
        if logits.is_cuda or logits.shape[-1] > FEW_CLASSES:
            return Probabilities(logits.softmax(dim=-1))
        return Probabilities(logits.mT.contiguous().softmax(dim=-2).mT)

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
                f"{shape_of(targets)}; y.astype(int), y.ravel() or y.argmax(1) may give them. For a "
                "regression target use HomoscedasticGaussian."
            )
        if outputs.shape[1] == 1:
            raise DpbnnError(
                "Categorical needs two classes or more, got outputs of shape [records, 1], whose one class is always "
                "certain; for two classes from one logit use Bernoulli."
            )

    def check_values(self, targets: Tensor, num_outputs: int) -> None:
        """Labels lie in 0 to K-1."""
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < num_outputs:
            raise DpbnnError(
                f"Labels must lie in 0 to {num_outputs - 1}, the model's {num_outputs} classes, got others; K classes "
                "are numbered from 0 and need K outputs."
            )
