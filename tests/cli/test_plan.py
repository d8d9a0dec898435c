"""`dpbnn plan`: settings in, epsilon out, and back."""

import json
import math
import sys

import pytest

from dpbnn.cli import main as cli
from dpbnn.privacy.statement import number_of_steps

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


def test_sgd_has_an_implied_temperature(figures):
    got = figures(PAPER + "--noise-multiplier 1.3 --clip-norm 1.5 --learning-rate 0.25")
    assert got["temperature"] == pytest.approx(0.25 * 60000 * (1.3 * 1.5 / 256) ** 2 / 2)


SGLD = {"clip-norm": 1.5, "learning-rate": 5e-6, "temperature": 0.5, "noise-multiplier": 1.2720742271998804}


@pytest.mark.guarantees("Any three of the four SGLD settings give the fourth.")
@pytest.mark.parametrize("missing", SGLD)
def test_any_three_of_the_four_sgld_settings_give_the_fourth(figures, missing):
    three = " ".join(f"--{name} {value}" for name, value in SGLD.items() if name != missing)
    got = figures(f"{PAPER} --method sgld {three}")
    for name, value in SGLD.items():
        assert got[name.replace("-", "_")] == pytest.approx(value, rel=1e-9)


def test_sgld_takes_a_budget_for_the_noise(figures):
    got = figures(PAPER + "--method sgld --epsilon 0.9 --clip-norm 1.5 --temperature 0.5")
    assert got["learning_rate"] == pytest.approx(5e-6, rel=0.02)
    implied = math.sqrt(2 * 0.5 / got["learning_rate"]) * 256 / (60000 * 1.5)
    assert got["noise_multiplier"] == pytest.approx(implied)


def test_a_hotter_chain_than_the_budget_needs_is_simply_more_private(figures):
    got = figures(PAPER + "--method sgld --epsilon 1 --clip-norm 1.5 --temperature 0.5 --learning-rate 5e-6")
    assert got["reported_epsilon"] == pytest.approx(0.8938)


def test_steps_are_never_more_than_the_epochs_hold():
    assert number_of_steps(None, 1.0, dataset_size=10, batch_size=3) == 3
    assert number_of_steps(None, 0.3, dataset_size=10, batch_size=1) == 3
    assert number_of_steps(None, 0.29, dataset_size=100, batch_size=1) == 29  # in floats 28.999...
    assert number_of_steps(7, None, dataset_size=10, batch_size=3) == 7


def test_a_delta_that_was_not_given_is_chosen_and_said(figures):
    got = figures("--dataset-size 1000 --batch-size 10 --steps 5 --noise-multiplier 1 --clip-norm 1")
    assert got["delta"] == 1e-4
    assert any("chosen as 0.0001" in note for note in got["notes"])


def test_a_large_delta_and_an_assumed_clip_norm_are_said(figures):
    got = figures("--dataset-size 1000 --batch-size 10 --steps 5 --noise-multiplier 1 --delta 0.001")
    assert any("not below 1/1000" in note for note in got["notes"])
    assert any("clip norm" in note.lower() for note in got["notes"])


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


@pytest.mark.guarantees("Contradicting settings are refused.")
@pytest.mark.parametrize("asked", ["--epsilon 0.5", "--noise-multiplier 1.3", "--noise-multiplier 1.25"])
def test_contradicting_settings_are_refused(run, asked):
    sgld = "--method sgld --clip-norm 1.5 --learning-rate 5e-6 --temperature 0.5 "
    code, out, err = run(f"plan {PAPER} {sgld} {asked}")
    assert (code, out) == (2, "")
    for way_out in ("drop one of the four", "temperature", "learning_rate", "clip_norm"):
        assert way_out in err


def test_the_ways_out_of_a_contradiction_lead_out(run, figures):
    sgld = "--method sgld --clip-norm 1.5 --learning-rate 5e-6"
    _, _, err = run(f"plan {PAPER} {sgld} --temperature 0.5 --epsilon 0.5")
    temperature = float(err.split("use temperature ")[1].split(",")[0])
    assert figures(f"{PAPER} {sgld} --temperature {temperature * 1.00001}")["reported_epsilon"] <= 0.5001
