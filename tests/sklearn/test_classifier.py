"""The classifier: classes, their probabilities and their uncertainty."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("opendp")


import dpbnn
from dpbnn.methods import METHODS
from dpbnn.sklearn import DPBayesClassifier
from tests.sklearn.settings import FULL_BATCH, PUBLIC


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


def test_a_refused_fit_leaves_no_labels(classes):
    model = DPBayesClassifier(bounds=(0, 10))
    taken = pytest.warns(dpbnn.DpbnnWarning, match="takes the class labels")
    with dpbnn.BudgetAccountant(epsilon=0.5, delta=1e-4), taken, pytest.raises(dpbnn.BudgetError):
        model.fit(*classes)
    assert not [name for name in vars(model) if name in ("classes_", "bounds_", "release_")]


def test_the_old_name_of_uncertainty_works_and_says_the_new_one(classes):
    model = DPBayesClassifier("sgd", bounds=(0, 10), random_state=0, **FULL_BATCH).fit(*classes)
    with pytest.warns(FutureWarning, match="predict_doubt is now predict_uncertainty") as found:
        old = model.predict_doubt(classes[0][:5])
    np.testing.assert_array_equal(old, model.predict_uncertainty(classes[0][:5]))
    assert found[0].filename == __file__
