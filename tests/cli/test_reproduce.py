"""`dpbnn reproduce`: what there is, what was asked for, and one line for what is not there."""

import json

import pytest

from dpbnn import experiments
from dpbnn.cli import main as cli


def run(capsys, *arguments):
    import sys

    sys.argv = ["dpbnn", "reproduce", *arguments]
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr()


def test_without_a_name_it_lists_the_items(capsys):
    code, printed = run(capsys)
    assert code == 0
    listed, hint = printed.out.split("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == list(experiments.ITEMS)
    assert "dpbnn reproduce NAME" in hint
    code, printed = run(capsys, "--json")
    assert list(json.loads(printed.out)) == list(experiments.ITEMS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "NAME must be one of 'accuracy'"),
        (["accountants", "--minutes", "0"], "--minutes must be > 0, got 0.0"),
        (["accountants", "--draw"], "--draw must stand alone, got accountants"),
        (["accountants", "--quick", "--out", __file__], "--out must be a folder that can be written to"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert printed.err.startswith(f"Error: {message}")
    assert printed.err.count("\n") == 1


def test_an_item_is_written_into_a_folder(capsys, tmp_path):
    code, printed = run(capsys, "accountants", "--quick", "--out", str(tmp_path / "own"))
    assert code == 0
    assert "shows accountants" in printed.out
    assert (tmp_path / "own" / "reproduction.md").is_file()
    files = {file.name for file in (tmp_path / "own" / "reproduction").iterdir()}
    assert {"accountants.json", "accountants.svg", "accountants.png"} <= files
    code, printed = run(capsys, "accountants", "--quick", "--out", str(tmp_path / "own"), "--json")
    assert json.loads(printed.out)["written"] == ["accountants"]
