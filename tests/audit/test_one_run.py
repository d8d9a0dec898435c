"""One run: canaries are guessed from a release that shows them, and not from one that hides them."""

import math

import pytest
import torch

import dpbnn
from dpbnn.audit.one_run import audit_method, audit_training, log_likelihoods
from dpbnn.methods import METHODS
from dpbnn.prediction import ClassPrediction, RealPrediction
from dpbnn.training.steps import eager

CANARIES = 60
SHAPE = {"dataset_size": CANARIES, "batch_size": CANARIES, "steps": 20, "clip_norm": 1.0}


def attacked(plan, canaries=CANARIES, confidence=0.95):
    x, y = 10 * torch.eye(canaries), torch.randint(2, (canaries,))
    how = {"method": dpbnn.SGD(1.0), "plan": plan, "likelihood": dpbnn.Categorical(), "confidence": confidence}
    return audit_training(dpbnn.networks.MLP(canaries, (), 2), x, y, **how)


def test_a_release_that_shows_its_canaries_refutes_a_small_epsilon():
    plan = dpbnn.PrivacyPlan(noise_multiplier=0.05, delta=1e-9, **SHAPE)
    found = attacked(plan)
    assert (found.canaries, found.guesses) == (CANARIES, 12)
    assert found.right == found.guesses
    assert 0.5 < found.epsilon < found.claimed_epsilon == plan.epsilon()
    assert found.check.holds, "the plan claims a very large epsilon"


def test_a_release_that_hides_its_canaries_is_no_alarm():
    found = attacked(dpbnn.PrivacyPlan.for_budget(epsilon=0.5, delta=1e-9, **SHAPE), confidence=1 - 1e-7)
    assert found.check.holds
    assert found.epsilon <= found.claimed_epsilon


def test_a_claim_that_the_release_breaks_is_an_alarm(monkeypatch):
    original = eager.add_noise
    monkeypatch.setattr(eager, "add_noise", lambda sums, noise, *how: original(sums, 1e-4 * noise, *how))
    found = attacked(dpbnn.PrivacyPlan.for_budget(epsilon=0.1, delta=1e-12, **SHAPE), canaries=300)
    assert found.right == found.guesses == 60
    assert found.epsilon > found.claimed_epsilon
    assert not found.check.holds


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_can_be_attacked(name):
    plan = dpbnn.PrivacyPlan(noise_multiplier=5.0, delta=1e-9, **SHAPE | {"steps": 3})
    assert audit_method(name, plan, CANARIES).check.holds


def test_likelihoods_of_targets_are_those_of_the_prediction():
    classes = ClassPrediction(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.zeros(2), num_draws=1)
    assert log_likelihoods(classes, torch.tensor([1, 0])) == pytest.approx([math.log(0.75), math.log(0.5)])
    means, variances = torch.tensor([[[0.0], [1.0]], [[2.0], [1.0]]]), torch.tensor([[[1.0], [3.0]], [[3.0], [3.0]]])
    numbers = RealPrediction(means, variances)
    normal = torch.distributions.Normal(torch.tensor([1.0, 1.0]), torch.tensor([2.0 + 2.0, 3.0]).sqrt())
    targets = torch.tensor([0.5, -1.0])
    expected = normal.log_prob(targets) + math.log(2 * math.pi) / 2
    assert log_likelihoods(numbers, targets[:, None]) == pytest.approx(expected.tolist(), abs=1e-6)
