"""A private Bayesian classifier."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dpbnn._warn import warn_renamed
from dpbnn.errors import DpbnnError
from dpbnn.prediction import ClassPrediction, Prediction
from dpbnn.sklearn.estimator import DPBayesEstimator, arguments
from dpbnn.sklearn.fitting import PrivateRows

__all__ = ["DPBayesClassifier"]


@dataclass(eq=False, repr=False)
class DPBayesClassifier(ClassifierMixin, DPBayesEstimator):  # type: ignore[misc]
    """Classes with probabilities and their uncertainty; `classes` are public, or taken for public from the labels.

    After `fit`: `classes_`, `guarantee_`, `release_`, `settings_` (what was chosen, and why), `bounds_`.
    """

    __doc__ += arguments("classes: all labels that can be; None takes those of the data for public.")

    _: KW_ONLY
    classes: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on a handful of rows, at epsilon 1
        return tags

    def _rows(self, X: Any, y: Any, groups: Any) -> PrivateRows:
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        kept = self._kept(groups, len(X))
        X, y = X[kept], y[kept]
        classes = np.unique(y if self.classes is None else np.asarray(self.classes))
        public = {"classes_": classes, **self._public_bounds(X.shape[1])}
        return PrivateRows(X, _labels(y, classes), len(classes), public, self._assumed(classes))

    def _assumed(self, classes: np.ndarray | None) -> tuple[str, ...]:
        if self.classes is not None or classes is None:
            return ()
        return (f"the {len(classes)} class labels are public: they were taken from the data",)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def _answers(self, prediction: Prediction) -> np.ndarray:
        assert isinstance(prediction, ClassPrediction)
        return self.classes_[prediction.labels.numpy()]

    def predict_proba(self, X: Any) -> np.ndarray:
        """``[rows, classes]``, averaged over draws of the weights."""
        return self._snapshot()._classes(X).probabilities.double().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        fit = self._snapshot()
        return fit._answers(fit._prediction(X))

    def predict_uncertainty(self, X: Any) -> np.ndarray:
        """``[rows, 2]`` in nats: entropy (all uncertainty) and mutual information (the epistemic part)."""
        prediction = self._snapshot()._classes(X)
        return np.stack([prediction.entropy.double().numpy(), prediction.mutual_information.double().numpy()], axis=1)

    def predict_doubt(self, X: Any) -> np.ndarray:
        """The old name of `predict_uncertainty`."""
        warn_renamed("predict_doubt", "predict_uncertainty")
        return self.predict_uncertainty(X)

    def sample(self, X: Any, num_draws: int = 10) -> np.ndarray:
        """``[rows, draws]``: labels as they might come, each column by another draw of the weights."""
        fit = self._snapshot()
        draws = fit._classes(X, num_draws, keep_draws=True).draws
        assert draws is not None
        generator = np.random.default_rng(None if fit.random_state is None else fit._seed())
        cumulative = draws.double().numpy().cumsum(axis=2)
        drawn = (generator.random(cumulative.shape[:2])[..., None] * cumulative[..., -1:] > cumulative).sum(axis=2)
        return fit.classes_[drawn.T]

    def _classes(self, X: Any, num_draws: int | None = None, **more: Any) -> ClassPrediction:
        prediction = self._prediction(X, num_draws, **more)
        assert isinstance(prediction, ClassPrediction)
        return prediction


def _labels(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    if len(classes) < 2:
        raise DpbnnError("y must have at least 2 classes, got one class; name all of them: classes=[...].")
    places = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    if not (classes[places] == y).all():
        raise DpbnnError("y must hold only the labels in classes, got others; name all of them: classes=[...].")
    return places
