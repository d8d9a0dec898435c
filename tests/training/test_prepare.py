"""What is settled before the first step. Under torchrun that is: nothing is trained, bought or charged."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import dpbnn
from dpbnn.cli import main as cli
from dpbnn.methods import Prepared
from dpbnn.training.prepare import refuse_several_processes
from dpbnn.training.steps import eager
from tests.training.test_fit import X as RECORDS
from tests.training.test_fit import fit, plan

X, Y = torch.randn(40, 3), torch.randint(2, (40,))
PLAN = dpbnn.PrivacyPlan(40, 10, 2, clip_norm=1.0, noise_multiplier=2.0, delta=1e-3)
WHOLE = {"model": nn.Linear(3, 2), "method": dpbnn.SGD(0.1), "plan": PLAN, "likelihood": dpbnn.Categorical()}
REFUSED = r"^A fit must run in one process, got a world size of 3: each process would .* charged alone. .*torchrun"


def fit_an_estimator(kind, **settings):
    from dpbnn import sklearn

    y = Y.double() if "Regressor" in kind else Y
    getattr(sklearn, kind)(**settings).fit(X.numpy(), y.numpy())


def search():
    from dpbnn.sklearn import DPBayesClassifier, DPGridSearch

    DPGridSearch(DPBayesClassifier(), {"hidden": [[], [4]]}).fit(X.numpy(), Y.numpy())


CALLS = {
    "fit": lambda: dpbnn.fit(X=X, y=Y, progress=False, **WHOLE),
    "fit_many": lambda: dpbnn.fit_many([dpbnn.Setup(**WHOLE)], X, Y, progress=False),
    "classifier": lambda: fit_an_estimator("DPBayesClassifier", bounds=None),
    "regressor": lambda: fit_an_estimator("DPBayesRegressor", bounds=None),
    "search": search,
}


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_fitted_in_one_of_several_processes(call, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with dpbnn.BudgetAccountant(100.0, 0.1) as budget:
        with pytest.raises(dpbnn.DpbnnError, match=REFUSED):
            CALLS[call]()
        assert budget.spent() == (0.0, 0.0)


def test_the_command_refuses_before_it_begins(tmp_path, monkeypatch, capsys):
    rows = np.random.default_rng(0).integers(0, 9, (200, 2))
    data, schema = tmp_path / "data.csv", tmp_path / "schema.toml"
    data.write_text("a,b\n" + "".join(f"{a},{'yes' if b > 4 else 'no'}\n" for a, b in rows))
    schema.write_text(
        'target = "b"\n[columns.a]\ntype = "number"\n[columns.b]\ntype = "category"\nvalues = ["yes", "no"]\n'
    )
    monkeypatch.setenv("WORLD_SIZE", "3")
    out = tmp_path / "out"
    command = ["dpbnn", "fit", str(data), "--schema", str(schema), "--out", str(out), "--epsilon", "1"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "got a world size of 3" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "schema.toml"]


@pytest.mark.parametrize(("size", "is_refused"), [(1, False), (3, True)])
def test_a_process_group_of_torch_counts_too(size, is_refused, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        if is_refused:
            with pytest.raises(dpbnn.DpbnnError, match=REFUSED):
                refuse_several_processes()
        else:
            refuse_several_processes()
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("size", ["1", "", "many"])
def test_one_process_is_let_through(size, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", size)
    refuse_several_processes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0.5}, "must not lower the plan's noise"),
        ({"noise_multiplier": ((2.0, 10), (0.99, 10))}, "must not lower the plan's noise"),
        ({"batch_size": 5}, "must change the plan's noise alone"),
        ({"clip_norm": 2.0}, "must change the plan's noise alone"),
        ({"steps": 10, "noise_multiplier": 3.0}, "must change the plan's noise alone"),
    ],
)
def test_a_method_may_raise_the_plans_noise_and_change_nothing_else(change, words):
    class Greedy(dpbnn.SGD):
        def prepare(self, plan):
            return Prepared(replace(plan, **change))

    with pytest.raises(dpbnn.DpbnnError, match=words):
        fit(method=Greedy(0.1))


def test_noise_that_a_method_raises_is_drawn_and_charged(monkeypatch):
    class Cautious(dpbnn.SGD):
        def prepare(self, plan):
            return Prepared(replace(plan, noise_multiplier=((2.0, 5), (3.0, 15))))

    drawn, original = [], eager.add_noise
    monkeypatch.setattr(eager, "add_noise", lambda c, noise, r, s: drawn.append(noise) or original(c, noise, r, s))
    release = fit(method=Cautious(0.1))
    assert drawn == [2.0] * 5 + [3.0] * 15
    assert release.guarantee.plan.noise_levels == ((2.0, 5), (3.0, 15))
    assert release.guarantee.epsilon < fit().guarantee.epsilon


def test_settings_that_are_known_to_mislead_are_warned_of_before_training(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(eager, "add_noise", stop)
    with pytest.warns(dpbnn.DpbnnWarning, match="divided by 60"), pytest.raises(KeyboardInterrupt):
        fit(method=dpbnn.SGLD(5.0))
    for likelihood in (dpbnn.HomoscedasticGaussian(), dpbnn.HeteroscedasticGaussian()):
        model = nn.Linear(6, 1 if isinstance(likelihood, dpbnn.HomoscedasticGaussian) else 2)
        with pytest.warns(dpbnn.DpbnnWarning, match="A learned noise level"), pytest.raises(KeyboardInterrupt):
            fit(y=RECORDS[:, :1], model=model, likelihood=likelihood)
    with pytest.raises(KeyboardInterrupt):  # a given noise level, and a clip norm that is large enough: nothing to say
        fit(y=RECORDS[:, :1], model=nn.Linear(6, 1), likelihood=dpbnn.HomoscedasticGaussian(0.5))
    with pytest.raises(KeyboardInterrupt):
        fit(
            y=RECORDS[:, :1],
            model=nn.Linear(6, 1),
            likelihood=dpbnn.HomoscedasticGaussian(),
            the_plan=plan(clip_norm=8.0),
        )
