"""The search that pays: for all fits, for the choice, and never with one person on both sides."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("opendp")

from sklearn.exceptions import DataConversionWarning

import dpbnn
from dpbnn.privacy.budget import composed_epsilon
from dpbnn.release import draft
from dpbnn.release.card import card
from dpbnn.sklearn import DPBayesClassifier, DPBayesRegressor, DPGridSearch, search
from dpbnn.training.run import Run
from tests.spending import Watch

PUBLIC = {"classes": [0, 1], "dataset_size": 1500}


@pytest.fixture(scope="module")
def classes():
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 10, (1500, 3))
    return X, (X[:, 0] + X[:, 1] > 10).astype(int)


def test_the_clearly_better_setting_is_chosen_within_the_budget(classes):
    X, y = classes
    grid = {"learning_rate": [1e-6, 1.0]}
    found = DPGridSearch(DPBayesClassifier(bounds=(0, 10), **PUBLIC), grid, epsilon=3.0, delta=1e-5).fit(X, y)
    assert found.best_params_ == {"learning_rate": 1.0}
    assert found.score(X, y) > 0.85
    assert found.predict_proba(X).shape == (1500, 2)
    guarantee = found.guarantee_
    assert guarantee.epsilon_of_fits <= 3.0
    assert guarantee.epsilon_of_fits > 2.5, "the budget is used"
    assert "all 2 fits" in str(guarantee)


def test_all_fits_are_charged_with_what_they_cost_together(classes, monkeypatch):
    plans, watch = [], Watch()(monkeypatch)
    begin = Run.begin

    def noted(self, *arguments):
        plans.append(self.work.plan)
        return begin(self, *arguments)

    monkeypatch.setattr(Run, "begin", noted)
    grid = {"hidden": [(), (4,)], "clip_norm": [1.0, 2.0]}
    found = DPGridSearch(DPBayesClassifier(**PUBLIC), grid, epsilon=3.0).fit(*classes)
    assert len(plans) == 4
    assert composed_epsilon(plans, 1e-5) == pytest.approx(found.guarantee_.epsilon_of_fits)
    assert composed_epsilon(plans, 1e-5) <= 3.0
    assert all(plan.pure_epsilons for plan in plans), "bounds are bought, and charged, in every fit"
    assert watch.epsilons == [*(own for plan in plans for own in plan.pure_epsilons), 3.0]
    assert sum(plan.epsilon() for plan in plans) > 3.0, "they add up to less than their sum"


def test_nobody_is_in_both_parts(classes, monkeypatch):
    X, y = classes
    people = np.arange(1500) // 3
    marked = X.copy()
    marked[:, 2] = people
    seen = {"fit": [], "score": []}
    rows, score = DPBayesClassifier._rows, search._score
    monkeypatch.setattr(
        DPBayesClassifier, "_rows", lambda own, x, *r: seen["fit"].append(set(x[:, 2])) or rows(own, x, *r)
    )
    monkeypatch.setattr(search, "_score", lambda own, x, *r: seen["score"].append(set(x[:, 2])) or score(own, x, *r))
    estimator = DPBayesClassifier(bounds=(0, 500), max_records_per_person=3, epochs=2, **PUBLIC)
    DPGridSearch(estimator, {"prior_scale": [0.5, 1.0]}, epsilon=3.0).fit(marked, y, groups=people)
    assert not seen["fit"][0] & seen["score"][0]
    assert seen["fit"][0] | seen["score"][0] == set(range(500))
    assert 50 < len(seen["score"][0]) < 150


def test_each_row_moves_a_score_by_at_most_one(classes):
    X, y = classes
    labels = DPBayesClassifier(bounds=(0, 10), epochs=2).fit(X, y)
    numbers = DPBayesRegressor(bounds=(0, 10), target_bounds=(0, 1), epochs=2).fit(X, y.astype(float))
    for fitted, extreme in ((labels, y[:1]), (numbers, np.array([1e300]))):
        model = SimpleNamespace(estimator=fitted, answers=fitted.predict)
        all_rows = search._score(model, X, y)
        assert 0 <= all_rows - search._score(model, X[1:], y[1:]) <= 1
        assert 0 <= search._score(model, X[:1], extreme) <= 1
        assert search._score(model, X[:0], y[:0]) == 0


def test_targets_in_a_column_are_scored_row_by_row(classes, monkeypatch):
    X, y = classes
    watch = Watch()(monkeypatch)
    grid = {"prior_scale": [0.5, 1.0]}
    with pytest.warns(DataConversionWarning):
        DPGridSearch(DPBayesClassifier(bounds=(0, 10), epochs=2), grid).fit(X, y[:, None])
    ((_, scores),) = watch.calls
    assert len(scores) == 2
    assert max(scores) <= len(X) / 2, "at most 1 for each row that is held out"
    with pytest.raises(ValueError, match="NaN"):
        DPGridSearch(DPBayesRegressor(bounds=(0, 10), target_bounds=(0, 1)), grid).fit(X, np.full(len(X), np.nan))


def test_scores_draw_secretly_whatever_random_state_says(classes, monkeypatch):
    seeds, predict = [], draft.predict
    monkeypatch.setattr(draft, "predict", lambda *a, seed: seeds.append(seed) or predict(*a, seed=seed))
    estimator = DPBayesClassifier("mc_dropout", bounds=(0, 10), random_state=0, epochs=2)
    found = DPGridSearch(estimator, {"prior_scale": [0.5, 1.0]}).fit(*classes)
    assert seeds == [None, None]
    assert found.best_estimator_.random_state == 0


def test_an_open_budget_pays_for_every_fit_and_the_choice_and_no_more_than_the_search_costs(classes):
    search = DPGridSearch(DPBayesClassifier(bounds=(0, 10), epochs=2, **PUBLIC), {"prior_scale": [0.5, 1.0, 2.0]})
    with dpbnn.BudgetAccountant(epsilon=1.0, delta=1e-5) as budget:
        search.fit(*classes)
        (charged,) = budget.charges
        assert len(charged.plans) == 3
        assert charged.epsilon_of_others == 1.0
        assert budget.spent() == (pytest.approx(1.0), 1e-5)
        with pytest.raises(dpbnn.BudgetError):
            search.fit(*classes)


def test_a_person_with_many_rows_has_no_more_to_say_than_anybody(classes, monkeypatch):
    X, y = classes
    X, y = np.concatenate([X, np.full((1000, 3), 5.0)]), np.concatenate([y, np.ones(1000, dtype=int)])
    people = np.concatenate([np.arange(1500), np.full(1000, 9999)])
    rows, score = [], search._score
    monkeypatch.setattr(search, "_score", lambda own, x, *rest: rows.append(len(x)) or score(own, x, *rest))
    found = DPGridSearch(
        DPBayesClassifier(bounds=(0, 10), epochs=20, **PUBLIC), {"prior_scale": [0.5, 1.0]}, holdout=0.9
    )
    found.fit(X, y, groups=people)
    assert max(rows) <= 1501
    with pytest.raises(dpbnn.DpbnnError, match="groups must say whose rows they are"):
        DPGridSearch(DPBayesClassifier(max_records_per_person=2), {"prior_scale": [0.5]}).fit(X, y)


def test_the_chosen_one_states_what_the_search_cost(classes, tmp_path):
    found = DPGridSearch(DPBayesClassifier(bounds=(0, 10), epochs=2), {"prior_scale": [0.5, 1.0]}, epsilon=2.0)
    with pytest.warns(dpbnn.DpbnnWarning, match="takes the class labels and the number of rows from the data"):
        best = found.fit(*classes).best_estimator_
    assert best.guarantee_.epsilon == best.release_.guarantee.epsilon == 2.0
    assert best.release_.guarantee.plan.epsilon() < 2.0
    assert "labels are public: they were taken from the data" in str(best.guarantee_)
    assert "search over settings on the private data is not covered" not in str(best.guarantee_)
    best.release_.save(tmp_path / "release")
    assert dpbnn.load(tmp_path / "release").guarantee.epsilon == 2.0


def test_plans_that_are_charged_are_those_that_are_used(classes):
    estimator = DPBayesClassifier(classes=[0, 1], dataset_size=2000, epochs=2)
    found = DPGridSearch(estimator, {"prior_scale": [0.5, 1.0]}, epsilon=0.7).fit(*classes)
    assert found.best_estimator_.settings_.plan.dataset_size == 1600


def test_the_ledger_of_the_search_goes_with_the_chosen_one(classes):
    how = {"batch_size": 1200, "epochs": 9, "classes": [0, 1], "dataset_size": 1500}
    estimator = DPBayesClassifier(max_records_per_person=2, **how)
    found = DPGridSearch(estimator, {"prior_scale": [0.5, 1.0]}, epsilon=4.0)
    ledger = found.fit(*classes, groups=np.arange(1500) // 2).best_estimator_.release_.settings["ledger"]
    assert {own["rows_per_person"] for own in ledger} == {2}
    assert [(own["purpose"], own["count"]) for own in ledger][-2:] == [
        ("upper quartile of column 2", 2),
        ("the choice between the candidates", 1),
    ]
    assert ledger[-1]["level"] == 2.0
    text = card(found.best_estimator_.guarantee_, found.best_estimator_.release_.settings)
    assert "| the choice between the candidates | noisy maximum | 2 | 1 | 2 |" in text
    assert "without amplification" not in text, "the plan is that of one candidate, and costs less than the search"


def test_an_interrupted_search_cannot_go_on_and_says_so_before(classes, tmp_path):
    for checkpoint, grid in ((tmp_path, {}), (None, {"checkpoint": [tmp_path]})):
        estimator = DPBayesClassifier(bounds=(0, 10), checkpoint=checkpoint)
        with pytest.raises(dpbnn.DpbnnError, match="checkpoint must be None in a search"):
            DPGridSearch(estimator, {"prior_scale": [0.5], **grid}).fit(*classes)


@pytest.mark.parametrize("name", ["epsilon", "delta", "dataset_size", "max_records_per_person"])
def test_what_decides_the_price_is_not_searched(classes, name):
    with pytest.raises(dpbnn.DpbnnError, match=f"param_grid must not vary {name}"):
        DPGridSearch(DPBayesClassifier(), {name: [1, 2]}).fit(*classes)


def test_only_our_estimators_are_searched(classes):
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(dpbnn.DpbnnError, match="estimator must be a DPBayesClassifier"):
        DPGridSearch(LogisticRegression(), {"C": [1.0]}).fit(*classes)
