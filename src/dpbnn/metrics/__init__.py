"""How good predictions are, measured on records whose answers are known.

    >>> import torch, dpbnn.metrics
    >>> from dpbnn.prediction import ClassPrediction
    >>> prediction = ClassPrediction(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0.3, 0.6]), num_draws=10)
    >>> dpbnn.metrics.evaluate(prediction, [0, 1])["accuracy"]
    1.0

Each figure is also a plain function: of probabilities and labels in `classification`, of a `RealPrediction` and targets
in `regression`, of scores in `uncertainty`.
"""

from typing import Any

from dpbnn.errors import DpbnnError
from dpbnn.metrics import classification, regression, uncertainty
from dpbnn.metrics._inputs import as_labels, as_probabilities, as_targets
from dpbnn.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["classification", "evaluate", "regression", "uncertainty"]


def evaluate(prediction: Prediction, y: Any) -> dict[str, float]:
    """All figures of a prediction, by name; `y` holds its labels or targets.

    Figures measured on private data have no noise on them and are outside the guarantee. Measure on public or held-out
    data that may be published, or keep the figures with the data.

    For classes: accuracy, negative log-likelihood, Brier score, the three calibration errors (15 bins), mean entropy
    and its parts, and the area under the rejection curve by entropy. For real outputs: root mean squared error,
    negative log-likelihood, CRPS, coverage and width of 95 % intervals, calibration error of the coverage, and the mean
    deviation and its parts.
    """
    if isinstance(prediction, ClassPrediction):
        return _evaluate_classes(prediction, y)
    if isinstance(prediction, RealPrediction):
        return _evaluate_real(prediction, y)
    raise DpbnnError(
        f"prediction must be a ClassPrediction or a RealPrediction, as release.predict returns, got "
        f"{type(prediction).__name__}; for plain probabilities use the functions of dpbnn.metrics.classification."
    )


def _evaluate_classes(prediction: ClassPrediction, y: Any) -> dict[str, float]:
    probabilities = as_probabilities(prediction.probabilities)
    labels = as_labels(y, probabilities)
    curve = classification.reliability_curve(probabilities, labels)
    correct = probabilities.argmax(dim=1) == labels
    return {
        "accuracy": classification.accuracy(probabilities, labels),
        "negative_log_likelihood": classification.negative_log_likelihood(probabilities, labels),
        "brier_score": classification.brier_score(probabilities, labels),
        "expected_calibration_error": curve.expected_calibration_error,
        "maximum_calibration_error": curve.maximum_calibration_error,
        "adaptive_calibration_error": classification.adaptive_calibration_error(probabilities, labels),
        **uncertainty.mean_uncertainty(prediction),
        "rejection_area": uncertainty.rejection_curve(prediction.entropy, correct).area,
    }


def _evaluate_real(prediction: RealPrediction, y: Any) -> dict[str, float]:
    targets = as_targets(y, prediction)
    return {
        "rmse": regression.rmse(prediction, targets),
        "negative_log_likelihood": regression.negative_log_likelihood(prediction, targets),
        "crps": regression.crps(prediction, targets),
        "coverage_95": regression.coverage(prediction, targets, 0.95),
        "interval_width_95": regression.interval_width(prediction, 0.95),
        "coverage_calibration_error": regression.coverage_curve(prediction, targets).calibration_error,
        **uncertainty.mean_uncertainty(prediction),
    }
