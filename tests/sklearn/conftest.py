"""Each test meets the estimators as a new process would."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _nothing_said():
    pytest.importorskip("sklearn")
    from dpbnn.sklearn import estimator

    estimator._warned_of.clear()


@pytest.fixture(scope="module")
def classes():
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 10, (1500, 3))
    return X, np.where(X[:, 0] + X[:, 1] > 10, "yes", "no")


@pytest.fixture(scope="module")
def numbers():
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 10, (4000, 3))
    return X, 100 + 20 * X[:, 0] + generator.normal(0, 5, 4000)
