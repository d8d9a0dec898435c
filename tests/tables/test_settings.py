"""Settings for a table: from public facts alone, with reasons, and what is given is kept."""

from dataclasses import replace

import numpy as np
import pytest

from dpbnn.errors import DpbnnError
from dpbnn.methods import METHODS
from dpbnn.tables.settings import NOISE_LEVEL, Facts, choose

SMALL = Facts(rows=300, columns=8, classes=2, epsilon=1.0, delta=1e-5)
ADULT = Facts(rows=32_561, columns=14, classes=2, epsilon=1.0, delta=1e-5)
LARGE = Facts(rows=1_000_000, columns=20, classes=None, epsilon=1.0, delta=1e-7)


@pytest.mark.parametrize("facts", [SMALL, ADULT, LARGE], ids=["small", "adult", "large"])
@pytest.mark.parametrize("epsilon", [pytest.param(0.3, marks=pytest.mark.slow), 3.0])
@pytest.mark.parametrize("method", METHODS)
def test_every_choice_keeps_its_budget_and_has_a_reason(facts, epsilon, method):
    chosen = choose(replace(facts, epsilon=epsilon, method=method))
    assert chosen.plan.epsilon() <= epsilon
    assert chosen.plan.epsilon() > 0.99 * epsilon
    assert chosen.plan.dataset_size == facts.rows
    assert chosen.plan.batch_size <= facts.rows
    assert {"hidden", "steps", "batch_size", "clip_norm", "learning_rate", "prior_scale"} <= chosen.reasons.keys()
    assert all(chosen.reasons.values())


def test_few_rows_are_trained_on_shortly_and_with_few_weights():
    small, large = choose(SMALL), choose(ADULT)
    assert not small.hidden
    assert large.hidden
    assert small.learning_rate * small.plan.steps < large.learning_rate * large.plan.steps


@pytest.mark.guarantees("What is given is kept.")
def test_what_is_given_is_kept():
    given = {
        "hidden": [7],
        "learning_rate": 0.5,
        "clip_norm": 2.0,
        "batch_size": 100,
        "prior_scale": 0.3,
        "epochs": None,
    }
    chosen = choose(SMALL, given)
    assert chosen.hidden == (7,)
    assert (chosen.learning_rate, chosen.prior_scale) == (0.5, 0.3)
    assert (chosen.plan.clip_norm, chosen.plan.batch_size) == (2.0, 100)
    assert chosen.reasons["clip_norm"] == "given"
    assert chosen.reasons["steps"] != "given"


@pytest.mark.guarantees("What is chosen depends on public facts alone.")
def test_what_is_chosen_depends_on_public_facts_alone():
    """Two data sets with the same facts, and nothing else in common."""
    from dpbnn.sklearn import DPBayesClassifier

    generator = np.random.default_rng(0)
    tables = [(generator.random((50, 3)), np.arange(50) % 2), (np.ones((40, 3)), np.ones(40, dtype=int))]
    facts = {"bounds": (0, 1), "classes": [0, 1], "dataset_size": 50, "batch_size": 50}
    releases = [DPBayesClassifier("sgd", delta=1e-3, **facts).fit(*table).release_ for table in tables]
    assert len({release.guarantee.plan for release in releases}) == 1
    assert releases[0].settings["learning_rate"] == releases[1].settings["learning_rate"]
    shapes = [{name: own.shape for name, own in release.posterior.weights.items()} for release in releases]
    assert shapes[0] == shapes[1]


def test_epochs_give_steps():
    plan = choose(ADULT, {"epochs": 3, "batch_size": 1000}).plan
    assert plan.steps == round(3 * 32_561 / 1000)


def test_what_is_bought_is_in_the_plan():
    bounds = {f"bound {place}": 0.01 for place in range(6)}
    chosen = choose(replace(LARGE, rows=2000), bounds=bounds)
    assert chosen.plan.pure_epsilons == (0.01,) * 6 + (chosen.noise_epsilon,)
    assert chosen.purchases == bounds | {NOISE_LEVEL: chosen.noise_epsilon}
    assert choose(SMALL, bounds={"a bound": 0.01}).plan.pure_epsilons == (0.01,)


@pytest.mark.parametrize(
    ("given", "message"), [({"dropout": 1}, "dropout must be"), ({"hidden": []}, "hidden must be")]
)
def test_dropout_needs_units_and_a_share_of_them(given, message):
    with pytest.raises(DpbnnError, match=message):
        choose(replace(SMALL, method="mc_dropout"), given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs must be > 0"),
        ({"hidden": [1.5]}, "hidden must be a whole number"),
        ({"hidden": 64}, "hidden must be a list of widths"),
        ({"hidden": "64"}, "hidden must be a list of widths"),
        ({"clip_norm": -1}, "clip_norm must be > 0"),
        ({"batch_size": 0}, "batch_size must be >= 1"),
        ({"batch_size": "64"}, "batch_size must be a whole number"),
    ],
)
def test_bad_values_are_refused_by_name(given, message):
    with pytest.raises(DpbnnError, match=message):
        choose(SMALL, given)
