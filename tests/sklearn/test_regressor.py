"""The regressor: numbers in their unit, with error bars."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("opendp")


from dpbnn.methods import METHODS
from dpbnn.sklearn import DPBayesRegressor


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_numbers_in_their_own_unit(numbers, method):
    X, y = numbers
    bounds = {"bounds": (0, 10), "target_bounds": (50, 350)}
    model = DPBayesRegressor(method, epsilon=3.0, dataset_size=4000, **bounds).fit(X, y)
    assert model.score(X, y) > 0.8
    mean, deviation = model.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (4000,)
    low, high = model.predict_interval(X, 0.95).T
    assert ((low < mean) & (mean < high)).all()
    assert np.mean((y > low) & (y < high)) > 0.9
    assert 1 < np.median(deviation) < 60


@pytest.mark.slow
def test_one_huge_record_is_clipped_like_any_other(numbers):
    X, y = numbers
    X, y = X.copy(), y.copy()
    X[0], y[0] = 1e300, -1e300
    bounds = {"bounds": (0, 10), "target_bounds": (50, 350)}
    model = DPBayesRegressor(epsilon=3.0, dataset_size=4000, **bounds).fit(X, y)
    assert model.score(X[1:], y[1:]) > 0.8
