"""All lint rules: each is triggered by what it is about, and by nothing else; `fit` applies them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import dpbnn
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
