"""What both estimators promise: scikit-learn's contract, and privacy."""

import json
import re
import threading
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("opendp")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import dpbnn
from dpbnn.sklearn import DPBayesClassifier, DPBayesRegressor, DPGridSearch, check_pipeline
from tests.sklearn.settings import FITS_AGAIN, FULL_BATCH, PUBLIC
from tests.spending import Watch

EXPECTED_TO_FAIL = {
    "check_supervised_y_2d": "two fits are compared, and sampling and noise take no seed",
    "check_classifier_data_not_an_array": "two fits are compared, and sampling and noise take no seed",
    "check_regressor_data_not_an_array": "two fits are compared, and sampling and noise take no seed",
    "check_regressors_int": "two fits are compared, and sampling and noise take no seed",
}


@pytest.mark.parametrize(
    "estimator",
    [DPBayesClassifier(), DPBayesRegressor()],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.slow
def test_they_keep_scikit_learns_contract_with_default_arguments(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, expected_failed_checks=EXPECTED_TO_FAIL, on_skip=None, on_fail=None)
    failed = {own["check_name"] for own in found if own["status"] == "failed"}
    expected = {own["check_name"] for own in found if own["status"] == "xfail"}
    assert not failed
    assert len(expected) <= 3


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "wrong",
    [{"random_state": "seven"}, {"method": "mc_dropout", "dropout": 2.0}, {"method": "mc_dropout", "hidden": []}],
)
def test_settings_that_cannot_be_are_refused_before_bounds_are_bought(classes, wrong, monkeypatch):
    watch = Watch()(monkeypatch)
    with pytest.raises(ValueError, match=r"seven|dropout must be > 0 and < 1|hidden must be one width or more"):
        DPBayesClassifier(epsilon=3.0, **PUBLIC, **wrong).fit(*classes)
    assert not watch.calls


def test_with_too_few_rows_bounds_are_refused_and_never_taken_from_the_data(classes):
    X, y = classes
    with pytest.raises(dpbnn.DpbnnError, match="bounds must be given for so few rows"):
        DPBayesClassifier(epsilon=0.1).fit(X[:40], y[:40])
    with pytest.warns(dpbnn.DpbnnWarning, match="40 rows at epsilon 0.1 teach little"):
        DPBayesClassifier(epsilon=0.1, bounds=(0, 10), **PUBLIC | {"dataset_size": 40}).fit(X[:40], y[:40])


TAKES = {
    "classes and n": (DPBayesClassifier, {}, r"classes=\[\.\.\.\] and dataset_size=n"),
    "classes": (DPBayesClassifier, {"dataset_size": 1500}, r"classes=\[\.\.\.\]"),
    "n": (DPBayesClassifier, {"classes": ["no", "yes"]}, "dataset_size=n"),
    "n of a regressor": (DPBayesRegressor, {"target_bounds": (0, 1)}, "dataset_size=n"),
}


@pytest.mark.parametrize(
    ("case", "searches"),
    [*((case, False) for case in TAKES), pytest.param("classes and n", True, marks=pytest.mark.slow)],
)
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


@FITS_AGAIN
def test_groups_alone_keep_one_row_of_each_person_and_say_so(classes):
    X, y = classes
    model = DPBayesClassifier("sgd", bounds=(0, 10), **FULL_BATCH)
    for people in (np.arange(1500), np.arange(1500) // 2):
        with pytest.warns(dpbnn.DpbnnWarning, match="one row of each person is used; max_records_per_person=k uses"):
            clone(model).fit(X, y, people)


def test_bought_bounds_cost_a_person_more_than_a_record(classes):
    X, y = classes
    people = np.arange(1500) // 3
    model = DPBayesClassifier(max_records_per_person=3, epsilon=3.0, **PUBLIC).fit(X, y, groups=people)
    assert model.guarantee_.epsilon <= 3.0
    assert model.guarantee_.plan.max_records_per_person == 3
    alone = DPBayesClassifier(epsilon=3.0, **PUBLIC).fit(X, y)
    assert model.guarantee_.plan.pure_epsilons[0] < alone.guarantee_.plan.pure_epsilons[0]


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


class Interrupt(Exception):
    pass


def cut(*_, **__):
    raise Interrupt


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
    with pytest.raises(dpbnn.DpbnnError, match="cannot be read or written: Not a directory"):
        DPBayesClassifier(**how | {"checkpoint": tmp_path / "thesis" / "chapter.txt" / "run"}).fit(*classes)
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
