"""The linter: each rule is triggered by what it is about, and by nothing else."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpbnn
from dpbnn.cli import main as cli
from dpbnn.lint import RULES, Subject, by_severity, inspect

LEVEL = {"dataset_size": 1000, "batch_size": 100, "steps": 50, "clip_norm": 1.0, "delta": 1e-5}
PLAN = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL)
X, Y = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3


def network():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def setup(plan=PLAN, **changes):
    settings = {"model": network(), "likelihood": dpbnn.Categorical(), "method": dpbnn.SGD(0.1), "x": X, "y": Y}
    return Subject(plan, **settings | changes)


def with_buffer():
    model = network()
    model.register_buffer("scale", torch.ones(1))
    return model


def pipelines():
    pytest.importorskip("sklearn")
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    named = OneHotEncoder(categories=[["a", "b"]])
    good = make_pipeline(ColumnTransformer([("a", named, [0])], remainder="passthrough"), FunctionTransformer())
    bad = make_pipeline(ColumnTransformer([("a", OneHotEncoder(), [0])]), StandardScaler())
    return bad, good


def norms_between():
    return X * torch.linspace(0.01, 5, 50)[:, None], Y.clone()


CASES = {
    "no-noise": lambda: (
        setup(dpbnn.PrivacyPlan.without_privacy(dataset_size=1000, batch_size=100, steps=50)),
        setup(),
    ),
    "records-mix": lambda: (setup(model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), setup()),
    "fixed-noise-seed": lambda: (setup(unsafe_seed=0), setup()),
    "values-without-noise": lambda: (setup(unsafe_diagnostics=True), setup()),
    "rows-per-person": lambda: (setup(people=["a", "b", "a"]), setup(people=["a", "b", "c"])),
    "fitted-preprocessing": lambda: tuple(setup(preprocessing=own) for own in pipelines()),
    "evaluation-on-training-data": lambda: (setup(public_data=(X[:9], Y[:9])), setup(public_data=norms_between())),
    "delta-not-small": lambda: (setup(dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"delta": 1e-3})), setup()),
    "large-epsilon": lambda: (setup(dpbnn.PrivacyPlan(noise_multiplier=0.3, **LEVEL)), setup()),
    "gdp-only": lambda: (setup(accountant="gdp"), setup(accountant="rdp")),
    "buffers": lambda: (setup(model=with_buffer()), setup()),
    "person-not-named": lambda: (setup(unused=["patient_id"]), setup(unused=["valid", "note"])),
    "temperature": lambda: (setup(method=dpbnn.SGLD(0.1)), setup(method=dpbnn.SGLD(1e-6))),
    "short-chain": lambda: (
        setup(method=dpbnn.SGLD(1e-6, dpbnn.Gaussian(0.1))),
        setup(method=dpbnn.SGLD(1e-6, dpbnn.Gaussian(0.005))),
    ),
    "clip-norm": lambda: (setup(public_data=(1e-3 * X, Y.clone())), setup(public_data=norms_between())),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rule_finds_what_it_is_about_and_nothing_where_it_is_not(name):
    bad, good = CASES[name]()
    found = {own.name: own for own in inspect(bad)}
    assert name in found
    assert found[name].why
    assert found[name].cure
    assert found[name].found in str(found[name])
    assert name not in {own.name for own in inspect(good)}


def test_every_rule_has_a_case_and_a_sound_setup_has_no_findings():
    assert set(CASES) == set(RULES)
    assert list(dict.fromkeys(rule.severity for rule in by_severity())) == ["hole", "weak", "care"]
    assert inspect(setup()) == []
    assert inspect(Subject(PLAN)) == []
    many = inspect(setup(unsafe_seed=0, model=with_buffer(), accountant="gdp"))
    assert [own.severity for own in many] == ["hole", "weak", "care"]


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
    ],
)
def test_training_data_is_known_again_in_other_clothes(public):
    x, y = X.clone(), Y.clone()
    found = inspect(Subject(PLAN, x=TensorDataset(x, y), public_data=public(x, y)))
    assert [own.name for own in found] == ["evaluation-on-training-data"]


def test_two_parts_of_one_array_are_not_the_same():
    assert inspect(Subject(PLAN, x=X[:30], y=Y[:30], public_data=(X[30:], Y[30:]))) == []


def test_networks_are_tried_whatever_the_records_come_in():
    mixing = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for x, y in ((X.double().numpy(), Y.numpy()), (TensorDataset(X, Y), None)):
        assert [own.name for own in inspect(setup(model=mixing, x=x, y=y)) if own.severity == "hole"] == ["records-mix"]
        assert inspect(setup(x=x, y=y)) == []


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
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

    named = OneHotEncoder(categories=[["a", "b"]], min_frequency=2)
    for bad, name in (
        (make_pipeline(KMeans(3)), "KMeans"),
        (ColumnTransformer([], remainder=StandardScaler()), "StandardScaler"),
        (FeatureUnion([("a", StandardScaler())]), "StandardScaler"),
        ([named], "OneHotEncoder"),
        (SimpleImputer(), "SimpleImputer"),
    ):
        (found,) = inspect(Subject(PLAN, preprocessing=bad))
        assert name in found.found
    good = make_pipeline(SimpleImputer(strategy="constant", fill_value=0), PolynomialFeatures())
    assert inspect(Subject(PLAN, preprocessing=good)) == []


def test_a_network_with_dropout_draws_its_masks_from_nobodys_generator():
    small = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"clip_norm": 1e-4})
    own = setup(small, model=nn.Sequential(nn.Dropout(0.5), network()), public_data=norms_between())
    before = torch.get_rng_state()
    assert "clip-norm" in [finding.name for finding in inspect(own)]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_clip_norm_far_below_all_gradients_is_found_too():
    small = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"clip_norm": 1e-4})
    assert "clips nearly all" in str(inspect(setup(small, public_data=norms_between())))


def run(capsys, *arguments):
    sys.argv = ["dpbnn", "check", *map(str, arguments)]
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr()


def test_the_command_checks_a_release(capsys, tmp_path):
    plan = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"delta": 1e-2})
    release = dpbnn.fit(
        network(), X, Y, method=dpbnn.SGD(0.1), plan=plan, likelihood=dpbnn.Categorical(), progress=False, unsafe_seed=0
    )
    release.save(tmp_path / "model")
    code, printed = run(capsys, tmp_path / "model", "--json")
    assert code == 1, "there is a hole"
    assert [own["name"] for own in json.loads(printed.out)["findings"]] == ["fixed-noise-seed", "delta-not-small"]
    code, printed = run(capsys, tmp_path / "model")
    assert "hole: fixed-noise-seed" in printed.out


def test_the_command_checks_a_table_before_anything_is_spent(capsys, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("patient,age,ill\n" + "".join(f"{i},30,no\n" for i in range(500)))
    schema = """
target = "ill"
[columns.patient]
type = "ignore"
[columns.age]
type = "number"
low = 0
high = 100
[columns.ill]
type = "category"
values = ["no", "yes"]
"""
    (tmp_path / "schema.toml").write_text(schema)
    code, printed = run(capsys, "data.csv", "--schema", "schema.toml", "--epsilon", "20")
    assert code == 0
    assert "weak: large-epsilon" in printed.out
    assert "care: person-not-named" in printed.out
    (tmp_path / "schema.toml").write_text(f'person = "patient"{schema}')
    code, printed = run(capsys, "data.csv", "--schema", "schema.toml", "--epsilon", "1")
    assert (code, printed.out) == (0, "Nothing was found.\n")
    code, printed = run(capsys, "data.csv", "--schema", "schema.toml")
    assert code == 2
    assert "--schema and --epsilon must be given together" in printed.err


def test_the_page_lists_every_rule():
    page = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text()
    assert page.endswith(
        "".join(f"| `{own.name}` | {own.severity} | {own.why} | {own.cure} |\n" for own in by_severity())
    )


def test_fit_refuses_to_measure_on_its_training_data_and_notes_what_it_finds():
    how = {"method": dpbnn.SGD(0.1), "likelihood": dpbnn.Categorical(), "progress": False}
    with pytest.raises(dpbnn.DpbnnError, match="public_data must not be the training data"):
        dpbnn.fit(network(), X, Y, plan=PLAN, public_data=(X[:5], Y[:5].clone()), **how)
    assert "findings" not in dpbnn.fit(network(), X, Y, plan=PLAN, public_data=norms_between(), **how).settings
    small = dpbnn.fit(network(), X, Y, plan=PLAN, public_data=(1e-3 * X, Y.clone()), **how)
    assert list(small.settings["findings"]) == ["clip-norm"]
    weak = dpbnn.PrivacyPlan(noise_multiplier=2.0, **LEVEL | {"delta": 1e-2})
    with pytest.warns(dpbnn.DpbnnWarning, match="weak: delta-not-small"):
        dpbnn.fit(network(), X, Y, plan=weak, **how)
    with pytest.warns(dpbnn.DpbnnWarning, match="weak: delta-not-small"):
        dpbnn.fit_many([dpbnn.Setup(network(), how["method"], weak, how["likelihood"])], X, Y, progress=False)
    assert list(dpbnn.fit(with_buffer(), X, Y, plan=weak, **how).settings["findings"]) == ["delta-not-small", "buffers"]
