"""Each test meets the estimators as a new process would."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_said():
    pytest.importorskip("sklearn")
    from dpbnn.sklearn import estimator

    estimator._said.clear()
