"""Whether a model is uncertain where it is wrong, and about records unlike those it has seen.

AUROC     = P(score of a foreign record > score of an ordinary one) + P(equal) / 2
rejection = accuracy on the records that are kept when the most uncertain ones are left to a person

>>> out_of_distribution_auroc(score_in=[0.1, 0.2, 0.3], score_out=[0.3, 0.9])
0.9166666666666666
>>> rejection_curve(uncertainty=[0.1, 0.9, 0.2, 0.4], correct=[True, False, True, True]).accuracy
tensor([0.7500, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbnn.metrics._inputs import as_correctness, as_scores
from dpbnn.metrics._ties import mean_over_ties
from dpbnn.prediction import ClassPrediction, Prediction

__all__ = ["RejectionCurve", "mean_uncertainty", "out_of_distribution_auroc", "rejection_curve"]


@dataclass(eq=False)
class RejectionCurve:
    """The accuracy of what is kept when 0, 1, ..., n - 1 of n records are rejected, the most uncertain first."""

    rejected: Tensor
    accuracy: Tensor

    @property
    def area(self) -> float:
        """The mean accuracy over all shares rejected: one minus the area under the risk-coverage curve.

        An uncertainty that says nothing leaves it at the accuracy; 1 needs every answer right.
        """
        return float(self.accuracy.mean())

    @property
    def best_accuracy(self) -> Tensor:
        """The accuracy if every wrong record were rejected before any right one: ``min(1, accuracy / kept)``."""
        return (self.accuracy[0] / (1 - self.rejected)).clamp_max(1.0)


def out_of_distribution_auroc(score_in: Any, score_out: Any) -> float:
    """How well a score (higher means less certain) tells foreign records from ordinary ones.

    1 is perfect, 1/2 is chance; less means that predictions of foreign records look more certain. Exact: computed from
    ranks, every pair of an ordinary and a foreign record counts 1, 0, or 1/2 for a tie.
    """
    ordinary, foreign = as_scores("score_in", score_in).sort().values, as_scores("score_out", score_out)
    below = torch.searchsorted(ordinary, foreign).sum()
    below_or_equal = torch.searchsorted(ordinary, foreign, right=True).sum()
    return int(below + below_or_equal) / (2 * len(ordinary) * len(foreign))


def rejection_curve(uncertainty: Any, correct: Any) -> RejectionCurve:
    """Accuracy against the share rejected, the largest `uncertainty` first; `correct` says which answers are right.

    `correct` holds booleans, not labels: from labels y they are ``prediction.labels == torch.as_tensor(y)``.
    Records of equal uncertainty are rejected in random order: the curve is the expectation over it.
    """
    scores = as_scores("uncertainty", uncertainty)
    right = mean_over_ties(scores, as_correctness(correct, len(scores)))[scores.argsort()]
    kept = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    return RejectionCurve(1 - kept.flip(0) / len(scores), (right.cumsum(dim=0) / kept).flip(0))


def mean_uncertainty(prediction: Prediction) -> dict[str, float]:
    """The mean uncertainty and its two sources: in nats for classes, as standard deviations for real outputs.

    Entropy is expected entropy (noise in the data) plus mutual information (uncertainty about the weights); the squares
    of the standard deviations add up likewise.
    """
    if isinstance(prediction, ClassPrediction):
        parts = {
            "mean_entropy": prediction.entropy,
            "mean_expected_entropy": prediction.expected_entropy,
            "mean_mutual_information": prediction.mutual_information,
        }
        return {name: float(values.double().mean()) for name, values in parts.items()}
    variances = {
        "total_deviation": prediction.variance,
        "aleatoric_deviation": prediction.aleatoric_variance,
        "epistemic_deviation": prediction.epistemic_variance,
    }
    return {name: float(values.double().mean().sqrt()) for name, values in variances.items()}
