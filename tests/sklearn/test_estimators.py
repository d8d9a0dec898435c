"""The estimators: scikit-learn's contract, and what they promise about privacy."""

import copy
import json
import multiprocessing
import os
import pickle
import re
import threading
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("opendp")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import dpbnn
from dpbnn.methods import METHODS
from dpbnn.sklearn import DPBayesClassifier, DPBayesRegressor, DPGridSearch, check_pipeline
from tests.spending import Watch

FITS_AGAIN = pytest.mark.filterwarnings("ignore:Fit . of one estimator and its clones")
PUBLIC = {"classes": ["no", "yes"], "dataset_size": 1500}
EXPECTED_TO_FAIL = {
    "check_supervised_y_2d": "two fits are compared, and sampling and noise take no seed",
    "check_classifier_data_not_an_array": "two fits are compared, and sampling and noise take no seed",
    "check_regressor_data_not_an_array": "two fits are compared, and sampling and noise take no seed",
    "check_regressors_int": "two fits are compared, and sampling and noise take no seed",
}


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


@pytest.mark.parametrize("estimator", [DPBayesClassifier(), DPBayesRegressor()], ids=lambda own: type(own).__name__)
def test_they_keep_scikit_learns_contract_with_default_arguments(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, expected_failed_checks=EXPECTED_TO_FAIL, on_skip=None, on_fail=None)
    failed = {own["check_name"] for own in found if own["status"] == "failed"}
    expected = {own["check_name"] for own in found if own["status"] == "xfail"}
    assert not failed
    assert len(expected) <= 3


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_classes(classes, method):
    X, y = classes
    model = DPBayesClassifier(method, epsilon=3.0, bounds=(0, 10), **PUBLIC).fit(X, y)
    assert model.score(X, y) > 0.85
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(len(X)), abs=1e-5)
    assert set(model.predict(X)) <= {"yes", "no"}
    assert model.guarantee_.epsilon <= 3.0
    assert model.guarantee_.holds
    uncertainty = model.predict_uncertainty(X[:7])
    assert uncertainty.shape == (7, 2)
    assert (uncertainty[:, 0] >= uncertainty[:, 1] - 1e-6).all()


@pytest.mark.parametrize("method", [pytest.param(own, marks=[pytest.mark.slow] * (own != "sgld")) for own in METHODS])
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


def test_samples_are_as_new_targets_would_be(classes, numbers):
    labels = DPBayesClassifier(epsilon=3.0, bounds=(0, 10), **PUBLIC).fit(*classes)
    drawn = labels.sample(classes[0][:200], num_draws=40)
    assert drawn.shape == (200, 40)
    assert (drawn == "yes").mean(axis=1) == pytest.approx(labels.predict_proba(classes[0][:200])[:, 1], abs=0.35)
    bounds = {"bounds": (0, 10), "target_bounds": (50, 350)}
    model = DPBayesRegressor(epsilon=3.0, dataset_size=4000, **bounds).fit(*numbers)
    mean, deviation = model.predict(numbers[0][:50], return_std=True)
    values = model.sample(numbers[0][:50], num_draws=100)
    assert values.shape == (50, 100)
    assert np.abs(values.mean(axis=1) - mean).max() < 6 * deviation.max() / 10
    assert values.std(axis=1).mean() == pytest.approx(deviation.mean(), rel=0.2)


def test_random_state_reaches_the_model_and_never_sampling_or_noise(classes):
    first, second = (DPBayesClassifier(bounds=(0, 10), random_state=0, **PUBLIC).fit(*classes) for _ in range(2))
    assert not np.allclose(first.predict_proba(classes[0]), second.predict_proba(classes[0]), atol=1e-6)
    np.testing.assert_array_equal(first.predict_proba(classes[0]), first.predict_proba(classes[0]))
    assert first.guarantee_.holds


@pytest.mark.parametrize("kind", ["classes", pytest.param("numbers", marks=pytest.mark.slow)])
def test_bounds_come_from_the_user_or_are_paid_for(kind, request, monkeypatch):
    X, y = request.getfixturevalue(kind)
    make = DPBayesClassifier if kind == "classes" else DPBayesRegressor
    watch = Watch()(monkeypatch, instead=lambda share: 3.0 if share == 0.25 else 7.0)
    outlier = X.copy()
    outlier[0] = 1e12
    models = [make(epsilon=3.0).fit(own, y) for own in (X, outlier)]
    for model in models:
        np.testing.assert_array_equal(model.bounds_.low, -1.0)
        np.testing.assert_array_equal(model.bounds_.high, 11.0)
    paid = models[0].guarantee_.plan.pure_epsilons
    assert list(paid) * 2 == watch.epsilons, "every quantile is in the plan"
    assert models[0].guarantee_.epsilon <= 3.0
    assert f"{len(paid)} releases without delta (bounds, noise levels)" in str(models[0].guarantee_)
    public = make(epsilon=3.0, bounds=(0, 10), **({} if kind == "classes" else {"target_bounds": (50, 350)}))
    left = len(public.fit(X, y).guarantee_.plan.pure_epsilons)
    assert left == (kind == "numbers"), "the noise level of targets is always bought"


def test_with_too_few_rows_bounds_are_refused_and_never_taken_from_the_data(classes):
    X, y = classes
    with pytest.raises(dpbnn.DpbnnError, match="bounds must be given for so few rows"):
        DPBayesClassifier(epsilon=0.1).fit(X[:40], y[:40])
    with pytest.warns(dpbnn.DpbnnWarning, match="40 rows at epsilon 0.1 teach little"):
        DPBayesClassifier(epsilon=0.1, bounds=(0, 10), **PUBLIC | {"dataset_size": 40}).fit(X[:40], y[:40])


def test_labels_are_public_or_said_to_be(classes):
    X, y = classes
    with pytest.warns(dpbnn.DpbnnWarning, match="takes the class labels and the number of rows from the data"):
        taken = DPBayesClassifier(bounds=(0, 10)).fit(X, y)
    assert "the 2 class labels are public: they were taken from the data" in taken.guarantee_.assumptions
    with pytest.warns(dpbnn.DpbnnWarning, match="takes the number of rows from the data"):
        given = DPBayesClassifier(bounds=(0, 10), classes=["yes", "no", "perhaps"]).fit(X, y)
    assert not any("labels are public" in text for text in given.guarantee_.assumptions)
    assert "bounds and classes that were given are public" in given.guarantee_.assumptions
    assert "the number of rows is public: it was taken from the data" in given.guarantee_.assumptions
    assert given.predict_proba(X).shape == (1500, 3)
    with pytest.raises(dpbnn.DpbnnError, match="y must hold only the labels in classes"):
        DPBayesClassifier(bounds=(0, 10), classes=["yes", "perhaps"]).fit(X, y)


TAKES = {
    "classes and n": (DPBayesClassifier, {}, r"classes=\[\.\.\.\] and dataset_size=n"),
    "classes": (DPBayesClassifier, {"dataset_size": 1500}, r"classes=\[\.\.\.\]"),
    "n": (DPBayesClassifier, {"classes": ["no", "yes"]}, "dataset_size=n"),
    "n of a regressor": (DPBayesRegressor, {"target_bounds": (0, 1)}, "dataset_size=n"),
}


@pytest.mark.parametrize(("case", "searches"), [*((case, False) for case in TAKES), ("classes and n", True)])
def test_what_is_taken_from_the_data_gets_one_warning_that_names_the_cure(classes, case, searches):
    make, given, cure = TAKES[case]
    X, y = classes
    y = y if make is DPBayesClassifier else (y == "yes").astype(float)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            one = make(bounds=(0, 10), epochs=4, **given)
            (DPGridSearch(one, {"hidden": [[]]}) if searches else one).fit(X, y)
    (warning,) = [own for own in found if "from the data" in str(own.message)]
    assert issubclass(warning.category, dpbnn.DpbnnWarning)
    assert re.search(rf"from the data, .*; give {cure}, known from elsewhere\.$", str(warning.message))
    assert not re.search(r"1500|\byes\b", str(warning.message)), "it says nothing that was found there"
    assert warning.filename == __file__


def test_further_rows_of_a_person_are_dropped_and_the_person_is_the_unit(classes, monkeypatch):
    X, y = classes
    people = np.arange(1500) // 5
    model = DPBayesClassifier(bounds=(0, 10), classes=["no", "yes"], max_records_per_person=2, epsilon=3.0)
    with pytest.warns(dpbnn.DpbnnWarning, match="takes the number of rows from the data"):
        model.fit(X, y, groups=people)
    assert model.guarantee_.unit == "one person with at most 2 records"
    assert model.guarantee_.plan.dataset_size == 600
    with pytest.raises(dpbnn.DpbnnError, match="groups must be one name for each row"):
        DPBayesClassifier(bounds=(0, 10)).fit(X, y, groups=people[:7])


def test_bought_bounds_cost_a_person_more_than_a_record(classes):
    X, y = classes
    people = np.arange(1500) // 3
    model = DPBayesClassifier(max_records_per_person=3, epsilon=3.0, **PUBLIC).fit(X, y, groups=people)
    assert model.guarantee_.epsilon <= 3.0
    assert model.guarantee_.plan.max_records_per_person == 3
    alone = DPBayesClassifier(epsilon=3.0, **PUBLIC).fit(X, y)
    assert model.guarantee_.plan.pure_epsilons[0] < alone.guarantee_.plan.pure_epsilons[0]


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
    model = DPBayesClassifier(bounds=(0, 10), **PUBLIC).fit(X, y, people)
    release = model.release_
    del people
    assert model.fit(X, y).release_ is not release


def test_a_refused_fit_leaves_no_labels(classes):
    model = DPBayesClassifier(bounds=(0, 10))
    taken = pytest.warns(dpbnn.DpbnnWarning, match="takes the class labels")
    with dpbnn.BudgetAccountant(epsilon=0.5, delta=1e-4), taken, pytest.raises(dpbnn.BudgetError):
        model.fit(*classes)
    assert not [name for name in vars(model) if name in ("classes_", "bounds_", "release_")]


@FITS_AGAIN
def test_where_rows_are_counted_their_number_is_public_and_neighbours_are_blanked_out(classes):
    model = DPBayesClassifier(bounds=(0, 10), epochs=1, classes=["no", "yes"])
    with pytest.warns(dpbnn.DpbnnWarning, match="takes the number of rows from the data"):
        counted = clone(model).fit(*classes).guarantee_
    declared = clone(model).set_params(dataset_size=1500).fit(*classes).guarantee_
    assert (counted.adjacency, declared.adjacency) == ("zero_out", "add_or_remove")
    assert counted.epsilon == declared.epsilon
    assert "is there or blanked out, the number of records being public" in str(counted)
    assert dpbnn.privacy.guarantee.PrivacyGuarantee.from_json(counted.to_json()) == counted


def test_a_budget_is_charged_once_for_bounds_and_training_before_either(classes, monkeypatch):
    watch = Watch()(monkeypatch)
    with dpbnn.BudgetAccountant(epsilon=0.9, delta=1e-4) as budget:
        with pytest.raises(dpbnn.BudgetError):
            DPBayesClassifier(epsilon=1.0).fit(*classes)
        assert not watch.calls
        DPBayesClassifier(epsilon=0.8).fit(*classes)
        assert budget.spent()[0] == pytest.approx(0.8, rel=1e-3)
    assert watch.calls


@FITS_AGAIN
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


def test_the_old_name_of_uncertainty_works_and_says_the_new_one(classes):
    model = DPBayesClassifier("sgd", bounds=(0, 10), random_state=0, **FULL_BATCH).fit(*classes)
    with pytest.warns(FutureWarning, match="predict_doubt is now predict_uncertainty") as found:
        old = model.predict_doubt(classes[0][:5])
    np.testing.assert_array_equal(old, model.predict_uncertainty(classes[0][:5]))
    assert found[0].filename == __file__


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


def test_they_work_in_a_pipeline(classes):
    X, y = classes
    last = DPBayesClassifier(epsilon=3.0, bounds=(0, 1), **PUBLIC)
    model = make_pipeline(FunctionTransformer(lambda own: own / 10), last)
    assert model.fit(X, y).score(X, y) > 0.85


def test_what_learns_from_the_rows_before_them_in_a_pipeline_is_called_a_hole(classes, tmp_path):
    last = DPBayesClassifier(bounds=(-3, 3), **PUBLIC)
    model = make_pipeline(StandardScaler(), last)
    (found,) = check_pipeline(model)
    assert re.match("hole: fitted-preprocessing: .*: StandardScaler", str(found))
    assert "Use public bounds" in str(found)
    assert check_pipeline(make_pipeline(FunctionTransformer(), last)) == []
    with pytest.raises(dpbnn.DpbnnError, match="pipeline must be a Pipeline"):
        check_pipeline(GridSearchCV(model, {}))
    model.fit(*classes)[-1].release_.save(tmp_path / "model")
    assumed = "earlier steps of a pipeline, learned nothing from private rows"
    assert assumed in str(last.guarantee_)
    assert assumed in " ".join((tmp_path / "model" / "card.md").read_text().split())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"delta": 1.0}, "delta must be > 0 and < 1"),
        ({"method": "adam"}, "method must be one of 'sgld'"),
        ({"bounds": (1, 0)}, "each low below its high"),
        ({"bounds": [(0, 1), (0, 1)]}, r"a pair for each of 3 columns, got shape \[2, 2\]"),
        ({"bounds": "wide"}, "bounds must be"),
        ({"bounds_share": 1.5, "bounds": None}, "bounds_share must be"),
        ({"hidden": (0,)}, "hidden must be >= 1"),
        ({"max_records_per_person": 0}, "max_records_per_person must be >= 1"),
        ({"dataset_size": 0.5}, "dataset_size must be a whole number"),
        ({"learning_rate": -1.0}, "learning_rate must be > 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(classes, wrong, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        DPBayesClassifier(**{"bounds": (0, 10)} | PUBLIC | wrong).fit(*classes)


def test_one_huge_record_is_clipped_like_any_other(numbers):
    X, y = numbers
    X, y = X.copy(), y.copy()
    X[0], y[0] = 1e300, -1e300
    bounds = {"bounds": (0, 10), "target_bounds": (50, 350)}
    model = DPBayesRegressor(epsilon=3.0, dataset_size=4000, **bounds).fit(X, y)
    assert model.score(X[1:], y[1:]) > 0.8


class Interrupt(Exception):
    pass


def cut(*_, **__):
    raise Interrupt


FULL_BATCH = {"batch_size": 1500, "dataset_size": 1500, "classes": ["no", "yes"], "epochs": 9}
"""Accounted for in no time."""


@pytest.mark.parametrize(
    "where", ["dpbnn.tables.training.prepared", "dpbnn.training.run._diverged", "dpbnn.release.draft.Release"]
)
def test_an_interrupted_fit_goes_on_and_buys_nothing_twice(numbers, tmp_path, monkeypatch, where):
    """Before the first step, after the last one, and after the noise level was bought."""
    watch = Watch()(monkeypatch)
    how = {"epsilon": 3.0, "checkpoint": tmp_path / "run", "max_records_per_person": 2}
    how |= {"batch_size": 4000, "dataset_size": 4000, "epochs": 9}
    with monkeypatch.context() as patch:
        patch.setattr(where, cut)
        with pytest.raises(Interrupt):
            DPBayesRegressor(**how).fit(*numbers)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0, "for its owner alone"
    kept = json.loads((tmp_path / "run" / "ledger.json").read_text())["bought"]
    model = DPBayesRegressor(**how).fit(*numbers)
    assert watch.purposes == list(model.settings_.purchases), "each once, before or after the interruption"
    assert watch.epsilons == list(model.guarantee_.plan.pure_epsilons)
    low, high = sorted(kept[f"{side} quartile of the target"]["value"] for side in ("lower", "upper"))
    assert (model.target_bounds_.low[0], model.target_bounds_.high[0]) == (low - (high - low), high + (high - low))
    assert model.release_.settings["releases_charged"] == model.guarantee_.plan.steps
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_plan_or_a_foreign_folder_is_refused(classes, tmp_path, monkeypatch):
    how = FULL_BATCH | {"checkpoint": tmp_path / "run", "epsilon": 3.0}
    with monkeypatch.context() as patch:
        patch.setattr("dpbnn.tables.training.prepared", cut)
        with pytest.raises(Interrupt):
            DPBayesClassifier(**how).fit(*classes)
    with pytest.raises(dpbnn.DpbnnError, match="belongs to another run: the plan, or what is bought, changed"):
        DPBayesClassifier(**how | {"epsilon": 2.0}).fit(*classes)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    for path in (tmp_path / "thesis", tmp_path / "thesis" / "chapter.txt"):
        with pytest.raises(dpbnn.DpbnnError, match="exists and is no checkpoint"):
            DPBayesClassifier(**how | {"checkpoint": path}).fit(*classes)
    with pytest.raises(dpbnn.DpbnnError, match="checkpoint must be the path of a folder, got 3"):
        DPBayesClassifier(**how | {"checkpoint": 3}).fit(*classes)
    DPBayesClassifier(**how).fit(*classes)
    with dpbnn.BudgetAccountant(epsilon=1.0, delta=1e-4), pytest.raises(dpbnn.BudgetError):
        DPBayesClassifier(**how | {"bounds": (0, 10)}).fit(*classes)
    assert not (tmp_path / "run").exists(), "neither after a fit nor where nothing was spent"


@FITS_AGAIN
@pytest.mark.guarantees("A fit that fails leaves the estimator as it was.")
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(classes, monkeypatch):
    model = DPBayesClassifier(bounds=(0, 10), **FULL_BATCH).fit(*classes)
    before = dict(vars(model))
    monkeypatch.setattr("dpbnn.release.draft.Release", cut)
    with pytest.raises(Interrupt):
        model.fit(classes[0][:, :2], classes[1])
    assert vars(model) == before
    assert model.predict(classes[0]).shape == (1500,)


@FITS_AGAIN
@pytest.mark.guarantees("Predictions in other threads are those of one fit or of another, never of both.")
def test_predictions_in_other_threads_are_those_of_one_fit_or_of_another_never_of_both(classes):
    """Labels, bounds and networks of two fits that differ in all of them, while the estimator goes to and fro."""
    X, y = classes
    model = DPBayesClassifier("sgd", epsilon=30.0, bounds=(0, 10), num_draws=1, **FULL_BATCH)
    others = clone(model).set_params(bounds=(0, 1e6), classes=[0, 1])
    others.fit(1e5 * X[:, [1, 2, 0]], np.where(y == "no", 1, 0))
    fits = [{name: own for name, own in vars(one).items() if name.endswith("_")} for one in (model.fit(X, y), others)]
    X, expected = X[:60], []
    for fitted in fits:
        model._become(fitted)
        expected.append(model.predict(X).tolist())
    assert expected[0] != expected[1]
    stop = threading.Event()

    def switch():
        while not stop.is_set():
            for fitted in fits:
                model._become(fitted)

    switching = threading.Thread(target=switch)
    switching.start()
    try:
        seen = [model.predict(X).tolist() for _ in range(100)]
    finally:
        stop.set()
        switching.join()
    assert all(own in expected for own in seen)
    assert all(own in seen for own in expected)


@FITS_AGAIN
def test_attributes_of_an_earlier_fit_do_not_survive(classes):
    X, y = classes
    model = DPBayesClassifier(bounds=(0, 10), **FULL_BATCH).fit(X, y)
    model.feature_names_in_ = np.array(["a", "b", "c"])
    model.fit(X[:, :2], y)
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 2
    assert model.predict(X[:, :2]).shape == (1500,)
