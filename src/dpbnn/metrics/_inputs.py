"""Checks of the arguments of metrics: tensors, NumPy arrays, lists or columns of a data frame."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpbnn.errors import DpbnnError
from dpbnn.prediction import RealPrediction

__all__ = [
    "as_correctness",
    "as_labels",
    "as_numbers",
    "as_probabilities",
    "as_scores",
    "as_targets",
    "check_length",
    "check_real",
]

ROUNDING = 0.01
"""How far a row of probabilities may be from a sum of 1: what half precision leaves, and far below what logits give."""


def as_numbers(name: str, values: Any) -> Tensor:
    """Real numbers of any type as a tensor on the CPU, with at least one record."""
    if not isinstance(values, Tensor):
        try:
            values = torch.from_numpy(np.array(values))  # a copy: PyTorch warns of arrays that may not be written to
        except (TypeError, ValueError) as error:
            held = getattr(values, "dtype", type(values).__name__)
            raise DpbnnError(f"{name} must hold numbers, all rows of one length, got {held}.") from error
    if values.dim() == 0 or values.is_complex() or len(values) == 0:
        raise DpbnnError(
            f"{name} must hold real numbers for at least one record, got {values.dtype} of shape {list(values.shape)}."
        )
    return values.detach().cpu()


def as_probabilities(values: Any) -> Tensor:
    """Probabilities of shape ``[records, classes]``, every row a distribution, in the type of `values`."""
    probabilities = as_numbers("probabilities", values)
    if probabilities.dim() != 2 or not probabilities.is_floating_point():
        raise DpbnnError(
            f"probabilities must be floating-point numbers of shape [records, classes], got {probabilities.dtype} of "
            f"shape {list(probabilities.shape)}; for two classes give both columns, 1 - p and p."
        )
    if probabilities.isnan().any():
        raise DpbnnError("probabilities must be numbers, got NaN; a network that diverged predicts nothing to measure.")
    wide = probabilities.double()
    if wide.min() < -ROUNDING or (wide.sum(dim=1) - 1).abs().max() > ROUNDING:
        raise DpbnnError(
            f"probabilities must be >= 0 and sum to 1 in every row, got values from {float(wide.min()):.3g} to "
            f"{float(wide.max()):.3g} and sums from {float(wide.sum(dim=1).min()):.3g} to "
            f"{float(wide.sum(dim=1).max()):.3g}; logits.softmax(1) gives probabilities."
        )
    return probabilities.clamp(0.0, 1.0)


def as_labels(values: Any, probabilities: Tensor) -> Tensor:
    """``[records]`` of whole numbers from 0, one for each row of `probabilities`.

    For two classes, zeros and ones of any type and in one column too: as the likelihood of one logit takes them.
    """
    labels = as_numbers("labels", values)
    num_records, num_classes = probabilities.shape
    if num_classes == 2 and ((labels == 0) | (labels == 1)).all() and labels.shape[1:] in ((), (1,)):
        labels = labels.long().reshape(len(labels))
    if labels.dim() != 1 or labels.is_floating_point():
        raise DpbnnError(
            f"labels must be whole numbers of shape [records], got {labels.dtype} of shape {list(labels.shape)}; "
            "y.astype(int), y.ravel() or y.argmax(1) may give them."
        )
    check_length("labels", labels, num_records)
    labels = labels.long()
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DpbnnError(
            f"labels must lie in 0 to {num_classes - 1}, the {num_classes} classes of the prediction, got others; "
            "classes are numbered from 0."
        )
    return labels


def check_real(prediction: RealPrediction) -> None:
    """Refuse predictions of another kind, and means and variances that are no mixture of Gaussians."""
    if not isinstance(prediction, RealPrediction):
        raise DpbnnError(
            f"prediction must be a RealPrediction, as release.predict returns for real outputs, got "
            f"{type(prediction).__name__}; for classes use dpbnn.metrics.classification."
        )
    means, variances = prediction.means, prediction.variances
    if means.dim() != 3 or means.shape != variances.shape or not means.numel():
        raise DpbnnError(
            "A RealPrediction must hold means and variances of one shape [draws, records, outputs], got "
            f"{list(means.shape)} and {list(variances.shape)}."
        )
    if not (means.isfinite().all() and variances.isfinite().all() and (variances > 0).all()):
        raise DpbnnError(
            "A RealPrediction must hold finite means and finite variances > 0, got NaN, infinity or a variance of at "
            "most 0; a network that diverged predicts nothing to measure."
        )


def as_targets(values: Any, prediction: RealPrediction) -> Tensor:
    """Targets of shape ``[records, outputs]`` in float64."""
    check_real(prediction)
    targets = as_numbers("targets", values)
    shape = prediction.means.shape[1:]
    check_length("targets", targets, shape[0])
    fits = targets.shape == shape or (shape[1] == 1 and targets.dim() == 1)
    if not fits or targets.dtype == torch.bool or not targets.isfinite().all():
        raise DpbnnError(
            f"targets must be finite numbers of shape {list(shape)}, one for each output of the "
            f"prediction, got {targets.dtype} of shape {list(targets.shape)}"
            f"{'' if targets.isfinite().all() else ' with NaN or infinity'}."
        )
    return targets.double().reshape(shape)


def as_scores(name: str, values: Any) -> Tensor:
    """Scores of shape ``[records]`` in float64, which keeps the order of every other type."""
    scores = as_numbers(name, values)
    if scores.dim() != 1 or scores.isnan().any():
        raise DpbnnError(
            f"{name} must hold one number per record, shape [records] and no NaN, got shape {list(scores.shape)}"
            f"{' with NaN' if scores.isnan().any() else ''}."
        )
    return scores.double()


def as_correctness(values: Any, num_records: int) -> Tensor:
    """0 (wrong) or 1 (correct) for each record, in float64, from booleans only: labels may be 0 and 1 as well."""
    # `labels == y` of a tensor and a list is a single False.
    correct = torch.tensor(values) if isinstance(values, bool) else as_numbers("correct", values)
    if correct.dim() != 1 or correct.dtype != torch.bool:
        raise DpbnnError(
            f"correct must hold True or False for each record, shape [records], got {correct.dtype} of shape "
            f"{list(correct.shape)}; from labels y it is prediction.labels == torch.as_tensor(y)."
        )
    check_length("correct", correct, num_records)
    return correct.double()


def check_length(name: str, values: Tensor, num_records: int, cure: str = "") -> None:
    """Refuse another number of records; `cure` says what to do."""
    if len(values) != num_records:
        raise DpbnnError(
            f"{name} must have one row for each of the {num_records} records, got {len(values)} rows"
            f"{'; ' if cure else ''}{cure}."
        )
