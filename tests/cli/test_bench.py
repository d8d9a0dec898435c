"""`dpbnn bench` has moved to the repository; for one minor version it says so."""

import sys

import pytest

from dpbnn.cli import main as cli


@pytest.mark.parametrize("arguments", [[], ["all"], ["clipping", "--quick", "--rounds", "2"]])
def test_the_command_says_where_it_went(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["dpbnn", "bench", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "Error: dpbnn bench has moved: run make bench, or python benchmarks NAME, in a clone of the repository.\n"
    )


def test_the_commands_that_there_are_do_not_list_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dpbnn", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "bench" not in capsys.readouterr().out
