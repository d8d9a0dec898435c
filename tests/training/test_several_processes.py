"""Under torchrun each process would make a release of its own: nothing is trained, bought or charged there."""

import sys

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import dpbnn
from dpbnn.cli import main as cli
from dpbnn.training.prepare import refuse_several_processes

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
