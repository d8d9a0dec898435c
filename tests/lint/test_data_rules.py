"""Lint rules about records: arrays are known again in other containers, people by columns, steps that learn."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dpbnn.lint import Subject, inspect
from tests.lint.test_lint import PLAN, X, Y


def test_arrays_of_other_kinds_are_compared_too():
    x = np.zeros((3, 2))
    assert [own.name for own in inspect(Subject(PLAN, x=x, y=None, public_data=(x[1:], None)))] == [
        "evaluation-on-training-data"
    ]


@pytest.mark.parametrize(
    "public",
    [
        lambda x, y: (x.clone().requires_grad_().detach(), y),
        lambda x, y: (TensorDataset(x, y), None),
        lambda x, y: (x.numpy(), y.clone()),
        lambda x, y: (x.T, y.clone()),
        lambda x, y: (x[:, ::2], y.clone()),
    ],
)
def test_training_data_is_known_again_in_other_clothes(public):
    x, y = X.clone(), Y.clone()
    found = inspect(Subject(PLAN, x=TensorDataset(x, y), public_data=public(x, y)))
    assert [own.name for own in found] == ["evaluation-on-training-data"]


def test_a_list_or_data_set_is_known_again_whatever_it_holds():
    rows = X.tolist()
    found = inspect(Subject(PLAN, x=rows, y=Y, public_data=(rows, Y.clone())))
    assert [own.name for own in found] == ["evaluation-on-training-data"]


def test_a_sparse_tensor_of_a_data_set_is_passed_over():
    records = TensorDataset(X, Y)
    records.graph = torch.eye(3).to_sparse()
    assert inspect(Subject(PLAN, x=records, public_data=(X.clone(), Y.clone()))) == []


def test_two_parts_of_one_array_are_not_the_same():
    assert inspect(Subject(PLAN, x=X[:30], y=Y[:30], public_data=(X[30:], Y[30:]))) == []


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("PatientID", True), ("patientid", True), ("MRN", True), ("e_mail", False), ("email", True), ("valid", False),
     ("paid", False), ("Customers", True), ("nhs_number", True), ("note", False)],
)  # fmt: skip
def test_columns_that_name_people_are_known_by_their_names(name, is_one):
    assert bool(inspect(Subject(PLAN, unused=[name]))) == is_one


def test_what_learns_from_rows_is_told_from_what_does_not():
    pytest.importorskip("sklearn")
    from sklearn.cluster import KMeans
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
    from sklearn.feature_selection import SelectFromModel
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

    named = OneHotEncoder(categories=[["a", "b"]], min_frequency=2)
    for bad, name in (
        (make_pipeline(KMeans(3)), "KMeans"),
        (ColumnTransformer([], remainder=StandardScaler()), "StandardScaler"),
        (FeatureUnion([("a", StandardScaler())]), "StandardScaler"),
        ([named], "OneHotEncoder"),
        (SimpleImputer(), "SimpleImputer"),
        (make_pipeline(TransformedTargetRegressor(Ridge(), transformer=StandardScaler())), "StandardScaler"),
        (TransformedTargetRegressor(make_pipeline(StandardScaler(), Ridge())), "StandardScaler"),
        (GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {}), "StandardScaler"),
        (SelectFromModel(Ridge()), "SelectFromModel"),
    ):
        (found,) = inspect(Subject(PLAN, preprocessing=bad))
        assert name in found.found
    good = make_pipeline(SimpleImputer(strategy="constant", fill_value=0), PolynomialFeatures())
    for harmless in (good, TransformedTargetRegressor(good), GridSearchCV(make_pipeline(good, Ridge()), {})):
        assert inspect(Subject(PLAN, preprocessing=harmless)) == []
