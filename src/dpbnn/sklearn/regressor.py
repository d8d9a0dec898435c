"""A private Bayesian regressor."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from dpbnn.prediction import Prediction, RealPrediction
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.queries.bounds import Bounds, Purchase
from dpbnn.sklearn.estimator import DPBayesEstimator, keep_arguments
from dpbnn.sklearn.fitting import PrivateRows, as_bounds
from dpbnn.tables.training import in_units

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

    def _rows(self, X: Any, y: Any, groups: Any) -> PrivateRows:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        X, y = self._kept(X, y, groups)
        return PrivateRows(X, y, 1, self._public_bounds(X.shape[1]))

    def _public_bounds(self, columns: int) -> dict[str, Bounds]:
        of_columns = super()._public_bounds(columns)
        if self.target_bounds is None:
            return of_columns
        return of_columns | {"target_bounds_": as_bounds("target_bounds", self.target_bounds, 1)}

    def _bought_bounds(self, rows: PrivateRows, bought: Purchase, ledger: Ledger) -> dict[str, Bounds]:
        private = [rows.X] * (self.bounds is None) + [rows.y[:, None]] * (self.target_bounds is None)
        found, columns = bought.bounds_of(np.concatenate(private, axis=1), ledger), rows.X.shape[1]
        of_columns = {"bounds_": Bounds(found.low[:columns], found.high[:columns])} if self.bounds is None else {}
        if self.target_bounds is not None:
            return of_columns
        return of_columns | {"target_bounds_": Bounds(found.low[-1:], found.high[-1:])}

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return self.target_bounds_.scaled(y[:, None]).astype(np.float32)

    def _answers(self, prediction: Prediction) -> np.ndarray:
        return self._in_units(prediction).mean.double().numpy()[:, 0]

    def _unbounded(self, columns: int) -> list[str]:
        return [*super()._unbounded(columns), *(["the target"] if self._buys_target() else [])]

    def _buys_target(self) -> bool:
        return self.target_bounds is None

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean for each row; with `return_std` also the standard deviation of a new target."""
        own = self._snapshot()
        found = own._numbers(X)
        mean = found.mean.double().numpy()[:, 0]
        if not return_std:
            return mean
        return mean, (found.aleatoric_variance + found.epistemic_variance).double().sqrt().numpy()[:, 0]

    def predict_interval(self, X: Any, level: float = 0.95) -> np.ndarray:
        """``[rows, 2]``: between which a new target lies with probability `level`, within public bounds."""
        own = self._snapshot()
        pair = np.stack([side.double().numpy()[:, 0] for side in own._numbers(X).interval(level)], axis=1)
        return pair if own.target_bounds is None else np.clip(pair, own.target_bounds_.low, own.target_bounds_.high)

    def sample(self, X: Any, num_draws: int = 10) -> np.ndarray:
        """``[rows, draws]``: targets as they might come, each column by another draw of the weights."""
        own = self._snapshot()
        found = own._numbers(X, num_draws)
        generator = np.random.default_rng(None if own.random_state is None else own._seed())
        means, deviations = found.means[..., 0].double().numpy(), found.variances[..., 0].double().sqrt().numpy()
        return (means + deviations * generator.standard_normal(means.shape)).T

    def _numbers(self, X: Any, num_draws: int | None = None) -> RealPrediction:
        return self._in_units(self._prediction(X, num_draws))

    def _in_units(self, prediction: Prediction) -> RealPrediction:
        assert isinstance(prediction, RealPrediction)
        return in_units(prediction, float(self.target_bounds_.low[0]), float(self.target_bounds_.high[0]))
