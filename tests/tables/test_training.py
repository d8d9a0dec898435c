"""From rows to a draft: what the estimators and the command line share."""

from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("opendp")

from dpbnn.errors import DpbnnError
from dpbnn.prediction import RealPrediction
from dpbnn.tables import training
from dpbnn.tables.settings import NOISE_LEVEL, Facts
from dpbnn.tables.terms import FitFolder, terms_for
from dpbnn.tables.training import in_units, train
from tests.spending import Watch

FACTS = Facts(rows=2000, columns=1, classes=None, epsilon=5.0, delta=1e-5, method="sgd")
GIVEN = {"batch_size": 2000, "epochs": 40, "learning_rate": 1.0, "hidden": []}


def rows(noise):
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (2000, 1)).astype(np.float32)
    return x, (0.5 * x + noise * generator.standard_normal((2000, 1))).clip(-1, 1).astype(np.float32)


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_the_noise_level_of_targets_is_bought_after_training_and_is_theirs(noise, monkeypatch):
    watch, terms = Watch()(monkeypatch), terms_for(FACTS, GIVEN)
    draft = train(*rows(noise), terms, terms.ledger(), seed=0)
    assert watch.purposes == [NOISE_LEVEL]
    assert watch.epsilons == [terms.chosen.noise_epsilon]
    assert draft.likelihood.noise_std == pytest.approx(noise, rel=0.2)


def test_a_worker_whose_fit_was_taken_over_does_not_train(monkeypatch):
    class Lost(FitFolder):
        def check(self):
            raise DpbnnError("taken over")

    terms = terms_for(FACTS, GIVEN)
    monkeypatch.setattr(training, "prepared", lambda *_: pytest.fail("it trains"))
    with pytest.raises(DpbnnError, match="taken over"):
        train(*rows(0.1), terms, terms.ledger(), folder=Lost())


def test_before_training_nothing_is_believed():
    terms = terms_for(FACTS, GIVEN | {"hidden": [7]})
    network = training._network(1, terms.facts, terms.chosen, seed=0)
    assert not network(torch.randn(5, 1)).any()
    again = training._network(1, terms.facts, terms.chosen, seed=0)
    assert all(torch.equal(one, other) for one, other in zip(network.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("steps", [1, 7, 400])
def test_a_rate_that_falls_has_the_chosen_one_as_its_mean(steps):
    runs = training._falling(0.3, steps)
    assert sum(length for _, length in runs) == steps
    assert sum(rate * length for rate, length in runs) / steps == pytest.approx(0.3)
    assert all(later < earlier for (earlier, _), (later, _) in pairwise(runs))


def test_predictions_return_to_the_unit_of_the_targets():
    prediction = in_units(RealPrediction(torch.tensor([[[-1.0], [0.5]]]), torch.full((1, 2, 1), 0.25)), 10.0, 30.0)
    assert prediction.mean.tolist() == [[10.0], [25.0]]
    assert prediction.variances.flatten().tolist() == [25.0, 25.0]
