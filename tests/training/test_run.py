"""A run before its first step and after its last: bad input is refused early, and a release says how it went."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.training.run import _diverged
from tests.training.test_fit import N, Releases, X, Y, fit, network


def test_numpy_arrays_and_a_data_set_size_that_differs_are_fine():
    assert fit(X.double().numpy(), Y.numpy().astype(np.int16)).guarantee.plan.dataset_size == N
    assert fit(X[:10], Y[:10]).guarantee.plan.dataset_size == N
    assert fit(X[:0], Y[:0]).guarantee.plan.dataset_size == N


def test_a_bfloat16_model_keeps_its_weights_in_float32():
    release = fit(model=network().bfloat16())
    assert all(values.dtype == torch.float32 for values in release.posterior.weights.values())
    assert release.predict(X).probabilities.shape == (N, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.randn(N, 5)}, "do not fit the model"),
        ({"y": Y + 1}, r"Labels must lie in 0 to 2, the model's 3 classes, got others;"),
        ({"y": Y - 1}, "Labels must lie in 0 to 2"),
        ({"y": Y.float()}, "integer labels"),
        ({"x": X[:-1]}, "one row per record, got different numbers"),
        ({"model": nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))}, "BatchNorm1d '0' mixes records"),
        ({"model": lambda x: x}, "model must be a torch.nn.Module"),
        ({"model": nn.Sequential()}, "model must be a module with parameters"),
        ({"method": dpbnn.SGD}, "method must be a method such as"),
        ({"likelihood": dpbnn.Categorical}, "likelihood must be a Likelihood"),
        ({"the_plan": 1.0}, "plan must be a PrivacyPlan"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
        ({"device": "nonsense"}, "device 'nonsense' cannot be used"),
        ({"public_data": X}, r"public_data must be a pair \(X, y\)"),
        ({"public_data": (X, Y + 5)}, "Labels must lie in 0 to 2"),
    ],
)
def test_bad_input_gets_one_clear_error_before_any_budget_is_spent(monkeypatch, change, message):
    releases = Releases(monkeypatch)
    with pytest.raises(dpbnn.DpbnnError, match=message):
        fit(**change)
    assert releases.steps == []


def test_execution_is_validated():
    for arguments in ({"micro_batch_size": 0}, {"dataset_workers": -1}, {"checkpoint_seconds": -1.0}):
        with pytest.raises(dpbnn.DpbnnError):
            dpbnn.Execution(**arguments)


def test_a_run_without_privacy_says_so():
    release = fit(the_plan=dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=15, steps=5), unsafe_seed=None)
    assert "no privacy guarantee" in str(release.guarantee)
    assert json.loads(release.guarantee.to_json())["epsilon"] is None


@pytest.mark.parametrize(
    "returned",
    [torch.ones(2, 3), (torch.ones(2, 1), torch.ones(2, 1)), dpbnn.models.likelihoods.Probabilities(torch.ones(3, 1))],
)
def test_a_likelihood_that_cannot_predict_is_refused_before_training(returned):
    class Broken(dpbnn.HomoscedasticGaussian):
        def predictive(self, outputs, weights):
            return returned

    with pytest.raises(dpbnn.DpbnnError, match=r"Broken.predictive must return Probabilities or Moments"):
        fit(y=X[:, :1], model=nn.Linear(6, 1), likelihood=Broken(1.0))


def test_a_run_that_diverges_is_warned_of():
    with pytest.warns(dpbnn.DpbnnWarning, match="has diverged"):
        release = fit(method=dpbnn.SGD(1e12))
    assert "has diverged" in release.settings["warnings"][0]
    with pytest.raises(dpbnn.DpbnnError, match="from 1e-30"):
        dpbnn.SGD(1e300)


def test_a_weight_that_is_no_number_is_warned_of_whatever_comes_before_it():
    posterior = dpbnn.posterior.PointEstimate({"bias": torch.zeros(2), "weight": torch.tensor([0.5, float("nan")])})
    (warning,) = _diverged(posterior)
    assert warning.startswith("The trained weights reach inf: the run has diverged.")
    assert _diverged(dpbnn.posterior.PointEstimate({"bias": torch.zeros(2)})) == []
