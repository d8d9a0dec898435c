"""Several rows of one person, from end to end: cut before anything looks at them, and paid for by every mechanism.

All rows take part in every step here: then k rows are one of k times the norm, and what they cost has a closed form.
"""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("opendp")

import dpbnn
from dpbnn.privacy.budget import ORDERS, BudgetAccountant, composed_epsilon
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.run import Run
from tests.spending import Watch

MOST = 3
PEOPLE, STEPS, DELTA = 1000, 100, 1e-5
ODD = 7.125
"""In every row of somebody who has a thousand."""


def plan(noise=20.0, pure=(), most=MOST, size=500):
    level = {"clip_norm": 1.0, "noise_multiplier": noise, "delta": DELTA, "pure_epsilons": pure}
    return PrivacyPlan(size, size, STEPS, max_records_per_person=most, **level)


def divergence(order, plan, most=MOST):
    """Of the plan for a person with so many rows, by its formula: steps a k^2 / (2 s^2), and randomized response."""
    gaussian = plan.steps * order * most**2 / (2 * plan.noise_multiplier**2)
    pure = [most * epsilon for epsilon in plan.pure_epsilons]
    return gaussian + sum(
        math.log((math.exp(order * own) + math.exp((1 - order) * own)) / (1 + math.exp(own))) / (order - 1)
        for own in pure
    )


def epsilon_of(plans, orders=ORDERS, delta=DELTA):
    return min(
        sum(divergence(order, own) for own in plans) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order in orders
    )


def fitted(the_plan):
    x, y = np.zeros((500, 2), dtype=np.float32), np.zeros(500, dtype=np.int64)
    how = {"method": dpbnn.SGD(0.1), "likelihood": dpbnn.Categorical(), "progress": False}
    return dpbnn.fit(dpbnn.networks.MLP(2, [], 2), x, y, plan=the_plan, **how)


def test_a_budget_that_adds_up_epsilons_pays_for_all_rows_of_a_person():
    of_one = plan(20.0 / MOST, (MOST * 0.02,), most=1)
    with BudgetAccountant(epsilon=30, delta=1e-4) as budget:
        for _ in range(2):
            fitted(plan(pure=(0.02,)))
    assert budget.spent()[0] == pytest.approx(2 * of_one.epsilon(), rel=1e-4)
    assert budget.spent()[0] > 2 * 2 * plan(pure=(0.02,), most=1).epsilon()


def test_a_budget_by_renyi_divergences_pays_for_all_rows_of_a_person():
    plans = [plan(pure=(0.02,)), plan(30.0)]
    with BudgetAccountant(epsilon=30, delta=1e-4, composition="rdp") as budget:
        for own in plans:
            fitted(own)
    assert budget.spent()[0] == pytest.approx(epsilon_of(plans, [budget._order], 1e-4), rel=1e-6)


def test_with_sampling_too_all_rows_of_a_person_are_composed():
    """As the accountant of a single run has it, which dp-accounting's events are compared with elsewhere."""
    sampled = replace(plan(2.0, (0.02,)), batch_size=50, steps=20)
    assert composed_epsilon([sampled], DELTA) == pytest.approx(sampled.epsilon("rdp"), rel=0.02)
    assert composed_epsilon([sampled], DELTA) > 2 * composed_epsilon(
        [replace(sampled, max_records_per_person=1)], DELTA
    )


def rows():
    """A thousand people with two rows each, and one with a thousand, who comes first."""
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 5, (2 * PEOPLE + 1000, 1))
    people = np.concatenate([np.full(1000, -1), np.repeat(np.arange(PEOPLE), 2)])
    X[people == -1] = ODD
    return X, X[:, 0] + generator.normal(0, 0.1, len(X)), people


KEPT = 2 * PEOPLE + MOST


def assert_cut(watch, records, purchases):
    """Every mechanism has seen at most so many rows of anybody, and was paid for so many."""
    assert records == [KEPT]
    assert watch.purposes == list(purchases)
    assert watch.epsilons == list(purchases.values())
    assert {permit.rows_per_person for permit, _ in watch.calls} == {MOST}
    assert [len(values) for _, values in watch.calls] == [KEPT] * len(watch.calls)
    assert all((values == ODD).sum() <= MOST for _, values in watch.calls)
    assert any((values == ODD).sum() == MOST for _, values in watch.calls)


@pytest.fixture
def seen(monkeypatch):
    """The calls of every mechanism: those without delta, and of noisy sums the number of records."""
    watch, records, begin = Watch()(monkeypatch), [], Run.begin

    def noted(self, *arguments):
        records.append(len(self.work.records))
        return begin(self, *arguments)

    monkeypatch.setattr(Run, "begin", noted)
    return watch, records


def assert_paid(guarantee, epsilon):
    """What is claimed is what a person with k rows costs: as one row of k times the norm, and k times each epsilon."""
    own = guarantee.plan
    pure = tuple(MOST * one for one in own.pure_epsilons)
    of_one = plan(own.noise_multiplier / MOST, pure, most=1, size=own.dataset_size)
    assert guarantee.unit == f"one person with at most {MOST} records"
    assert guarantee.epsilon == pytest.approx(of_one.epsilon(), rel=1e-3)
    assert guarantee.epsilon <= epsilon


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_an_estimator_cuts_rows_before_anything_looks_at_them_and_pays_for_those_it_keeps(seen, kind):
    sklearn = pytest.importorskip("dpbnn.sklearn")
    X, y, people = rows()
    how = {"dataset_size": KEPT, "batch_size": KEPT, "epochs": STEPS, "max_records_per_person": MOST}
    if kind == "classes":
        model = sklearn.DPBayesClassifier("sgd", 5.0, classes=[0, 1], **how).fit(X, (y > 3).astype(int), groups=people)
    else:
        model = sklearn.DPBayesRegressor("sgd", 5.0, **how).fit(X, y, groups=people)
    assert_cut(*seen, model.settings_.purchases)
    assert_paid(model.guarantee_, 5.0)
    assert len(model.settings_.purchases) == {"classes": 2, "numbers": 5}[kind]
    assert {own["rows_per_person"] for own in model.release_.settings["ledger"]} == {MOST}


def test_a_table_cuts_rows_before_anything_looks_at_them_and_pays_for_those_it_keeps(seen, tmp_path):
    pytest.importorskip("pyarrow")
    from dpbnn.tables.fitting import Order, fit_table
    from dpbnn.tables.schema import read_schema

    with (tmp_path / "data.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["who", "x", "y"])
        lines.writerows((who, float(x), float(y)) for (x,), y, who in zip(*rows(), strict=True))
    text = f'target = "y"\nperson = "who"\nrows_per_person = {MOST}\n'
    text += '[columns.x]\ntype = "number"\n[columns.y]\ntype = "number"\n'
    (tmp_path / "schema.toml").write_text(text)
    given = {"batch_size": KEPT, "epochs": STEPS}
    order = Order(
        tmp_path / "data.csv", read_schema(tmp_path / "schema.toml"), tmp_path / "out", 5.0, DELTA, "sgd", given
    )
    model, chosen = fit_table(order, text)
    assert_cut(*seen, chosen.purchases)
    assert_paid(model.release.guarantee, 5.0)


def test_a_search_cuts_rows_and_pays_for_those_it_keeps_in_every_fit_and_in_the_choice(seen, monkeypatch):
    sklearn = pytest.importorskip("dpbnn.sklearn")
    import opendp.prelude as dp

    (watch, _), maximum, costs = seen, dp.m.make_noisy_max, []

    def noted(*arguments):
        made = maximum(*arguments)
        costs.append(made.map(1.0))
        return made

    monkeypatch.setattr(dp.m, "make_noisy_max", noted)
    X, y, people = rows()
    size = round(0.8 * KEPT)
    how = {"dataset_size": KEPT, "batch_size": size, "epochs": STEPS, "max_records_per_person": MOST}
    estimator = sklearn.DPBayesRegressor("sgd", **how)
    search = sklearn.DPGridSearch(estimator, {"prior_scale": [0.5, 1.0]}, epsilon=8.0).fit(X, y, groups=people)
    plan = search.best_estimator_.guarantee_.plan
    assert search.guarantee_.epsilon_of_fits == pytest.approx(epsilon_of([plan, plan]), rel=1e-6)
    assert search.guarantee_.epsilon_of_fits <= 8.0
    *bounds, (choice, scores) = watch.calls
    assert len(bounds) == 2 * len(plan.pure_epsilons)
    assert all((values == ODD).sum() <= MOST for _, values in bounds)
    assert max(len(values) for _, values in bounds) <= KEPT
    assert 1 < max(scores) <= KEPT - min(len(values) for _, values in bounds)
    assert (choice.rows_per_person, MOST * choice.epsilon) == (MOST, pytest.approx(8.0))
    assert costs
    assert MOST * costs[-1] <= 8.0 * (1 + 1e-9)
    assert MOST * costs[-1] > 7.9, "all of it is used"
