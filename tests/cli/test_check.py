"""`dpbnn check`: lint rules on a saved release, and on a table before anything is spent."""

import json
import sys

import pytest

import dpbnn
from dpbnn.cli import main as cli
from tests.lint.test_lint import LEVEL, X, Y, network


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
    assert code == 0
    assert printed.out == "Nothing was found. Values were not looked at: dpbnn fit refuses bad ones.\n"
    code, printed = run(capsys, "data.csv", "--schema", "schema.toml")
    assert code == 2
    assert "--schema and --epsilon must be given together" in printed.err
