"""`dpbnn plan`: settings in, epsilon out, and back."""

import json
import sys

import pytest

from dpbnn.cli import main as cli

PAPER = "--dataset-size 60000 --batch-size 256 --epochs 15 --delta 1e-5 "


@pytest.fixture
def run(monkeypatch, capsys):
    def run(arguments):
        monkeypatch.setattr(sys, "argv", ["dpbnn", *arguments.split()])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


@pytest.fixture
def figures(run):
    def figures(arguments):
        code, out, err = run(f"plan {arguments} --json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return figures


def test_the_example_of_the_paper_comes_out(figures):
    got = figures(PAPER + "--method sgld --clip-norm 1.5 --learning-rate 5e-6 --temperature 0.5")
    assert (got["method"], got["dataset_size"], got["batch_size"], got["steps"]) == ("sgld", 60000, 256, 3515)
    assert got["noise_multiplier"] == pytest.approx(1.2721, abs=1e-4)
    assert got["epsilon"] == pytest.approx({"pld": 0.8937, "rdp": 0.9888, "gdp": 0.8613}, abs=2e-4)
    assert (got["clip_norm"], got["learning_rate"], got["temperature"], got["delta"]) == (
        1.5,
        5e-6,
        0.5,
        1e-5,
    )


def test_the_figures_say_which_is_reported_and_which_is_an_approximation(figures):
    got = figures(PAPER + "--noise-multiplier 1.3 --clip-norm 1.5")
    assert got["gdp_is_approximation"] is True
    assert (got["reported_epsilon"], got["accountant"], got["adjacency"]) == (0.8645, "pld", "add_or_remove")
    assert got["epsilon_replace_one"] == pytest.approx(1.5553)
    assert got["notes"] == []


def test_a_budget_gives_the_noise(figures):
    got = figures(PAPER + "--epsilon 1 --clip-norm 1.5")
    assert got["noise_multiplier"] == pytest.approx(1.1851, abs=1e-3)
    assert got["epsilon"]["pld"] <= 1


def test_the_table_is_for_people(run):
    code, out, err = run("plan --dataset-size 1000 --batch-size 10 --steps 50 --noise-multiplier 1 --delta 1e-5")
    assert (code, err) == (0, "")
    assert "epsilon by GDP (approximation)" in out
    assert "adding or removing one record, by PLD." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nonsense", "No such command"),
        ("plan", "Missing option"),
        ("plan --nonsense", "No such option"),
        ("plan --dataset-size many --batch-size 2", "Invalid value for '--dataset-size'"),
        ("plan --dataset-size 10 --batch-size 2", "steps or epochs must be given, got neither"),
        ("plan --dataset-size 10 --batch-size 2 --steps 3 --epochs 3", "got both"),
        ("plan --dataset-size 10 --batch-size 20 --steps 3 --epsilon 1", "batch_size must be at most"),
        ("plan --dataset-size 0 --batch-size 2 --epochs 3 --epsilon 1", "dataset_size must be >= 1, got 0"),
        ("plan --dataset-size 10 --batch-size 0 --epochs 3 --epsilon 1", "batch_size must be >= 1, got 0"),
        (
            "plan --dataset-size 10 --batch-size 10 --epochs 0.1 --epsilon 1",
            "epochs must be enough for one step",
        ),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3",
            "noise_multiplier or epsilon must be given, got neither",
        ),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon 1 --noise-multiplier 1",
            "must not both be given",
        ),
        ("plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon -1", "epsilon must be > 0, got -1.0"),
        ("plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon 1e9", "epsilon must be at most 1000"),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --noise-multiplier nan",
            "noise_multiplier must be",
        ),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon 1 --delta 2",
            "delta must be > 0 and < 1",
        ),
        ("plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon 1 --method vi", "method must be one of"),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon 1 --clipping no",
            "clipping must be one of",
        ),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --epsilon 1 --temperature 1",
            "temperature must be given for sgld",
        ),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --method sgld --epsilon 1 --clip-norm 1",
            "at least two of learning_rate, clip_norm and temperature, got clip_norm",
        ),
        (
            "plan --dataset-size 10 --batch-size 2 --steps 3 --method sgld --temperature 1 --clip-norm 1",
            "must also have noise_multiplier or epsilon, from which learning_rate follows",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(run, arguments, message):
    code, out, err = run(arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
