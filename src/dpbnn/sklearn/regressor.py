"""A private Bayesian regressor."""

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from dpbnn.prediction import RealPrediction
from dpbnn.privacy.bounds import Bounds
from dpbnn.sklearn.estimator import DPBayesEstimator, as_bounds, keep_arguments
from dpbnn.tabular import in_units

__all__ = ["DPBayesRegressor"]


class DPBayesRegressor(RegressorMixin, DPBayesEstimator):  # type: ignore[misc]
    """Numbers with error bars; targets are clipped to `target_bounds`, public or bought.

    After `fit`: `guarantee_`, `release_`, `settings_` (what was chosen, and why), `bounds_`, `target_bounds_`.
    """

    __doc__ += DPBayesEstimator.__doc__.split("\n\n", 1)[1].replace(  # type: ignore[union-attr]
        "        bounds_share:",
        "        target_bounds: (low, high) of the targets, public; None buys them.\n        bounds_share:",
    )

    def __init__(
        self,
        method: str = "sgld",
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        bounds_share: float = 0.5,
        hidden: Any = None,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        batch_size: int | None = None,
        epochs: float | None = None,
        prior_scale: float | None = None,
        dropout: float | None = None,
        num_draws: int = 100,
        dataset_size: int | None = None,
        max_records_per_person: int = 1,
        checkpoint: Any = None,
        take_over: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        keep_arguments(self, locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on a handful of rows, at epsilon 1
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on private rows; `groups` names the person of each row.

        The same arrays with the same settings again are not trained on, and not paid for, a second time.
        """
        data = X, y, groups
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        if self._is_repeated(*data):
            return self
        X, y = self._kept(X, y, groups)
        columns = X.shape[1]
        terms = self._terms(len(X), columns, 1)

        def scaled() -> tuple[np.ndarray, np.ndarray]:
            if terms.bought is not None:
                private = [X] * (self.bounds is None) + [y[:, None]] * (self.target_bounds is None)
                found = terms.bought.bounds_of(np.concatenate(private, axis=1))
            if self.bounds is None:
                self.bounds_ = Bounds(found.low[:columns], found.high[:columns])
            else:
                self.bounds_ = as_bounds("bounds", self.bounds, columns)
            if self.target_bounds is None:
                self.target_bounds_ = Bounds(found.low[-1:], found.high[-1:])
            else:
                self.target_bounds_ = as_bounds("target_bounds", self.target_bounds, 1)
            return self.bounds_.scaled(X).astype(np.float32), self.target_bounds_.scaled(y[:, None]).astype(np.float32)

        self._release(terms, scaled, [])
        return self._remember(*data)

    def _unbounded(self, columns: int) -> int:
        return super()._unbounded(columns) + self._buys_target()

    def _buys_target(self) -> bool:
        return self.target_bounds is None

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean for each row; with `return_std` also the standard deviation of a new target."""
        found = self._numbers(X)
        mean = found.mean.double().numpy()[:, 0]
        if not return_std:
            return mean
        return mean, (found.aleatoric_variance + found.epistemic_variance).double().sqrt().numpy()[:, 0]

    def predict_interval(self, X: Any, level: float = 0.95) -> np.ndarray:
        """``[rows, 2]``: between which a new target lies with probability `level`, within public bounds."""
        pair = np.stack([side.double().numpy()[:, 0] for side in self._numbers(X).interval(level)], axis=1)
        return pair if self.target_bounds is None else np.clip(pair, self.target_bounds_.low, self.target_bounds_.high)

    def sample(self, X: Any, num_draws: int = 10) -> np.ndarray:
        """``[rows, draws]``: targets as they might come, each column by another draw of the weights."""
        found = self._numbers(X, num_draws)
        generator = np.random.default_rng(None if self.random_state is None else self._seed())
        means, deviations = found.means[..., 0].double().numpy(), found.variances[..., 0].double().sqrt().numpy()
        return (means + deviations * generator.standard_normal(means.shape)).T

    def _numbers(self, X: Any, num_draws: int | None = None) -> RealPrediction:
        found = self._prediction(X, num_draws)
        assert isinstance(found, RealPrediction)
        return in_units(found, float(self.target_bounds_.low[0]), float(self.target_bounds_.high[0]))
