"""What an estimator remembers: what it and its clones spend, where it was sent from, what it was fitted on."""

import copy
import multiprocessing
import os
import pickle
import re
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("opendp")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier

import dpbnn
from dpbnn.sklearn import DPBayesClassifier, DPGridSearch
from tests.sklearn.settings import FITS_AGAIN, FULL_BATCH, PUBLIC

SECOND_FIT = "Fit 2 of one estimator and its clones, as in a search or cross-validation: "


def test_searches_of_scikit_learn_warn_that_they_spend_and_how_much(classes):
    X, y = classes
    model = DPBayesClassifier(bounds=(0, 10), epochs=3, **PUBLIC)
    with pytest.warns(dpbnn.DpbnnWarning, match=rf"{SECOND_FIT}.* epsilon = 2 and delta = 2e-05 "):
        cross_val_score(model, X, y, cv=2)
    with pytest.warns(dpbnn.DpbnnWarning, match="Fit 4 .* epsilon = 4 and delta = 4e-05 .*DPGridSearch") as found:
        best = GridSearchCV(model, {"learning_rate": [0.01, 1.0]}, cv=2).fit(X, y)
    assert best.best_params_["learning_rate"] in (0.01, 1.0)
    assert len(found) == 1, "after the second fit and the fourth, and then after the eighth"
    with pytest.warns(dpbnn.DpbnnWarning, match="Fit 8 "):
        clone(best.best_estimator_).fit(X, y)


@pytest.mark.slow
def test_a_search_that_pays_is_one_fit_and_an_ensemble_is_many(classes):
    X, y = classes
    model = DPBayesClassifier("sgd", bounds=(0, 10), epochs=1, **PUBLIC)
    search = DPGridSearch(model, {"prior_scale": [0.5, 1.0]}, epsilon=1.0)
    search.fit(X, y)
    with pytest.warns(dpbnn.DpbnnWarning, match=f"{SECOND_FIT}.* epsilon = 2 and delta = 2e-05 "):
        clone(search).fit(X, y)
    with pytest.warns(dpbnn.DpbnnWarning, match=SECOND_FIT):
        OneVsRestClassifier(DPBayesClassifier("sgd", bounds=(0, 10), epochs=1, dataset_size=1500)).fit(X, X[:, :2] > 5)


def test_a_fit_of_others_does_not_count_and_copies_do(classes):
    model = DPBayesClassifier("sgd", bounds=(0, 10), **FULL_BATCH).fit(*classes)
    DPBayesClassifier("sgd", bounds=(0, 10), **FULL_BATCH).fit(*classes)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(clone(model)))):
        copied._spending().fits = 1
        with pytest.warns(dpbnn.DpbnnWarning, match=SECOND_FIT):
            copied.fit(*classes)


def test_no_record_is_kept_in_the_estimator_or_its_pickle(classes):
    X, y = classes
    X = X.copy()
    X[17] = [1.2345678901234567, 2.3456789012345678, 3.4567890123456789]
    model = DPBayesClassifier(bounds=(0, 10), **PUBLIC).fit(X, y)
    text = pickle.dumps(model)
    again = pickle.loads(text)
    assert X[17].tobytes() not in text
    assert X[17].astype(np.float32).tobytes() not in text
    np.testing.assert_array_equal(again.predict(X).shape, (1500,))
    assert again.guarantee_ == model.guarantee_
    assert clone(model).get_params()["bounds"] == (0, 10)


def test_the_same_fit_again_spends_nothing(classes):
    X, y = classes
    with dpbnn.BudgetAccountant(epsilon=1.5, delta=1e-4) as budget:
        model = DPBayesClassifier(bounds=(0, 10), **PUBLIC).fit(X, y)
        release = model.release_
        with pytest.warns(dpbnn.DpbnnWarning, match="nothing is spent"):
            assert model.fit(X, y).release_ is release
        assert len(budget.charges) == 1
        with pytest.raises(dpbnn.BudgetError):
            model.fit(X.copy(), y)
        with pytest.raises(dpbnn.BudgetError):
            model.set_params(random_state=1).fit(X, y)


@FITS_AGAIN
def test_a_fit_with_people_is_not_one_without_them(classes):
    X, y = classes
    people = np.arange(len(X)) // 2
    with pytest.warns(dpbnn.DpbnnWarning, match="one row of each person"):
        model = DPBayesClassifier(bounds=(0, 10), **PUBLIC).fit(X, y, people)
    release = model.release_
    del people
    assert model.fit(X, y).release_ is not release


@FITS_AGAIN
@pytest.mark.filterwarnings("ignore:This fit runs in another process")
@pytest.mark.slow
def test_other_processes_do_not_pass_a_budget_by(classes):
    X, y = classes
    model = DPBayesClassifier(bounds=(0, 10), epochs=1)
    searching = DPGridSearch(model, {"prior_scale": [1.0]})
    several = OneVsRestClassifier(model, n_jobs=2).fit(X, y)  # workers that are older than the budget
    with dpbnn.BudgetAccountant(epsilon=1.0, delta=1e-4) as budget:
        for spend in (
            lambda: clone(several).fit(X, y),
            lambda: cross_val_score(searching, X, y, cv=2, n_jobs=2, error_score="raise"),
        ):
            with pytest.raises(dpbnn.BudgetError, match="n_jobs=1"):
                spend()
        assert not budget.charges
        DPBayesClassifier(bounds=(0, 10), epochs=1, **PUBLIC).fit(X, y)
    clone(several).fit(X, y)


def _warned_in_a_worker(sent, X, y):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        pickle.loads(sent).fit(X, y)
    return [str(own.message) for own in found]


def test_a_fit_in_another_process_says_that_nobody_adds_up(classes, older_worker):
    sent = pickle.dumps(clone(DPBayesClassifier("sgd", bounds=(0, 10), **FULL_BATCH)))
    for _ in range(2):
        (text,) = older_worker.apply(_warned_in_a_worker, (sent, *classes))
        assert re.match(
            "This fit runs in another process than its estimator was made in, .* spends epsilon again", text
        )


def _fitted_in_a_worker(how, sent, X, y):
    """What became of it, in a worker that unpickles all that it is sent and fits the first."""
    first, *_ = [pickle.loads(own) for own in sent]
    own = {
        "itself": lambda: first,
        "a clone": lambda: clone(first),
        "sent on": lambda: pickle.loads(pickle.dumps(first)),
    }
    try:
        own[how]().fit(X, y)
    except dpbnn.BudgetError as error:
        return str(error)
    return "fitted"


@pytest.fixture(scope="module")
def older_worker():
    """A process that is there before any budget."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(os.getpid)
        yield pool


@pytest.mark.parametrize(
    "how", ["itself", *(pytest.param(own, marks=pytest.mark.slow) for own in ("a clone", "sent on"))]
)
@pytest.mark.parametrize("searching", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_sent_under_a_budget_does_not_forget_it_whatever_comes_after_it(classes, older_worker, how, searching):
    """It is fitted when the budget is closed already, so that the worker knows from the estimator alone."""
    X, y = classes
    model = DPBayesClassifier(method="sgd", bounds=(0, 10), epochs=1, **PUBLIC)
    model = DPGridSearch(model, {"prior_scale": [1.0]}) if searching else model
    before = pickle.dumps(model)
    with dpbnn.BudgetAccountant(epsilon=1.0, delta=1e-4):
        under = pickle.dumps(model)
    for sent, expected in (([under], "n_jobs=1"), ([under, before], "n_jobs=1"), ([before, under], "fitted")):
        assert expected in older_worker.apply(_fitted_in_a_worker, (how, sent, X, y))
    pickle.loads(under).fit(X, y)  # in the process of the budget itself, after it


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux tells")
def test_an_older_template_is_not_fitted_in_an_older_worker_while_a_budget_is_open(classes, older_worker):
    before = pickle.dumps(DPBayesClassifier(bounds=(0, 10), epochs=1, **PUBLIC))
    with dpbnn.BudgetAccountant(epsilon=1.0, delta=1e-4):
        assert "n_jobs=1" in older_worker.apply(_fitted_in_a_worker, ("itself", [before], *classes))
    assert older_worker.apply(_fitted_in_a_worker, ("itself", [before], *classes)) == "fitted"
