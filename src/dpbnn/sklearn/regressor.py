"""A private Bayesian regressor."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from dpbnn.prediction import Prediction, RealPrediction
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.queries.bounds import Bounds, BoundsPurchase
from dpbnn.sklearn.estimator import TARGET, DPBayesEstimator, arguments
from dpbnn.sklearn.fitting import PrivateRows, as_bounds
from dpbnn.tables.training import in_units

__all__ = ["DPBayesRegressor"]


@dataclass(eq=False, repr=False)
class DPBayesRegressor(RegressorMixin, DPBayesEstimator):  # type: ignore[misc]
    """Numbers with error bars; targets are clipped to `target_bounds`, public or bought.

    After `fit`: `guarantee_`, `release_`, `settings_` (what was chosen, and why), `bounds_`, `target_bounds_`.
    """

    __doc__ += arguments("target_bounds: (low, high) of the targets, public; None buys them.")

    _: KW_ONLY
    target_bounds: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on a handful of rows, at epsilon 1
        return tags

    def _rows(self, X: Any, y: Any, groups: Any) -> PrivateRows:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        kept = self._kept(groups, len(X))
        return PrivateRows(X[kept], y[kept], None, self._public_bounds(X.shape[1]))

    def _public_bounds(self, columns: int) -> dict[str, Bounds]:
        of_columns = super()._public_bounds(columns)
        if self.target_bounds is None:
            return of_columns
        return of_columns | {"target_bounds_": as_bounds("target_bounds", self.target_bounds, 1)}

    def _bought_bounds(self, rows: PrivateRows, bought: BoundsPurchase, ledger: Ledger) -> dict[str, Bounds]:
        private = [rows.X] * (self.bounds is None) + [rows.y[:, None]] * (self.target_bounds is None)
        bounds, columns = bought.bounds_of(np.concatenate(private, axis=1), ledger), rows.X.shape[1]
        of_columns = {"bounds_": Bounds(bounds.low[:columns], bounds.high[:columns])} if self.bounds is None else {}
        if self.target_bounds is not None:
            return of_columns
        return of_columns | {"target_bounds_": Bounds(bounds.low[-1:], bounds.high[-1:])}

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return self.target_bounds_.scaled(y[:, None]).astype(np.float32)

    def _answers(self, prediction: Prediction) -> np.ndarray:
        return self._in_units(prediction).mean.double().numpy()[:, 0]

    def _unbounded(self, columns: int) -> list[str]:
        return super()._unbounded(columns) + ([TARGET] if self.target_bounds is None else [])

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean for each row; with `return_std` also the standard deviation of a new target."""
        prediction = self._snapshot()._numbers(X)
        mean = prediction.mean.double().numpy()[:, 0]
        if not return_std:
            return mean
        return mean, (prediction.aleatoric_variance + prediction.epistemic_variance).double().sqrt().numpy()[:, 0]

    def predict_interval(self, X: Any, level: float = 0.95) -> np.ndarray:
        """``[rows, 2]``: two numbers between which a new target lies with probability `level`, within public bounds."""
        fit = self._snapshot()
        pair = np.stack([side.double().numpy()[:, 0] for side in fit._numbers(X).interval(level)], axis=1)
        return pair if fit.target_bounds is None else np.clip(pair, fit.target_bounds_.low, fit.target_bounds_.high)

    def sample(self, X: Any, num_draws: int = 10) -> np.ndarray:
        """``[rows, draws]``: targets as they might come, each column by another draw of the weights."""
        fit = self._snapshot()
        prediction = fit._numbers(X, num_draws)
        generator = np.random.default_rng(None if fit.random_state is None else fit._seed())
        means, variances = (part[..., 0].double().numpy() for part in (prediction.means, prediction.variances))
        return (means + np.sqrt(variances) * generator.standard_normal(means.shape)).T

    def _numbers(self, X: Any, num_draws: int | None = None) -> RealPrediction:
        return self._in_units(self._prediction(X, num_draws))

    def _in_units(self, prediction: Prediction) -> RealPrediction:
        assert isinstance(prediction, RealPrediction)
        return in_units(prediction, float(self.target_bounds_.low[0]), float(self.target_bounds_.high[0]))
