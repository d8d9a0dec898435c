"""`dpbnn bench`: the programs of the repository's benchmarks folder, by name."""

import ast
import runpy
import sys
from pathlib import Path

import pytest

from dpbnn.cli import main as cli

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = runpy.run_path(str(FOLDER / "__main__.py"))["PROGRAMS"]


@pytest.fixture
def run(monkeypatch, capfd):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpbnn", "bench", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capfd.readouterr()
        return exit_.value.code, captured.out, captured.err

    yield run
    for file in FOLDER.glob("*.py"):
        if file.stem != "__main__":
            sys.modules.pop(file.stem, None)


def test_every_program_is_listed_with_the_first_line_of_its_docstring(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    for name, (file, _) in PROGRAMS.items():
        first = ast.get_docstring(ast.parse((FOLDER / file).read_text())).splitlines()[0]
        assert f"  {name} " in out
        assert first in out


def test_an_unknown_name_is_answered_with_those_there_are(run):
    code, out, err = run("nonsense", "--quick")
    choices = ", ".join([*PROGRAMS, "all", "report"])
    assert (code, out) == (2, "")
    assert err == f"Error: NAME must be one of {choices}, got 'nonsense'.\n"


def test_options_after_the_name_are_the_programs(run):
    code, out, _ = run("clipping", "--help")
    assert code == 0
    assert "usage: dpbnn bench clipping" in out
    assert "--batch-size" in out


def test_help_before_a_name_is_the_commands(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Measure speed and memory" in out


def test_a_bad_option_of_a_program_ends_with_its_exit_code(run):
    code, _, err = run("clipping", "--nonsense")
    assert code == 2
    assert err == "Error: unrecognized arguments: --nonsense; dpbnn bench clipping --help lists the options.\n"


def test_where_only_the_wheel_is_there_the_cure_is_said(run, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "lib" / "dpbnn" / "cli" / "main.py"))
    code, out, err = run("clipping")
    assert (code, out) == (2, "")
    assert err.startswith("Error: dpbnn bench must run from a clone of the repository, got ")
    assert "clone the repository" in err
    assert err.count("\n") == 1
