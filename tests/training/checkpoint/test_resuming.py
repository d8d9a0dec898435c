"""A run that is resumed ends as if nothing had happened, or is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import dpbnn
from tests.training.checkpoint.interrupting import fit_interrupted
from tests.training.test_fit import X, Y, fit, network, same_weights

SELDOM, ALWAYS = dpbnn.Execution(checkpoint_seconds=1000.0), dpbnn.Execution(checkpoint_seconds=0.0)


@pytest.mark.guarantees(
    "A run resumed in the same environment ends as an uninterrupted one, with its weights and its ledger."
)
@pytest.mark.parametrize("seconds", [0.0, 1000.0])
@pytest.mark.parametrize(
    ("where", "at"), [("clip_and_sum", 1), ("clip_and_sum", 8), ("add_noise", 8), ("fingerprint", 20)]
)
@pytest.mark.parametrize("optimizer", [pytest.param("SGD", marks=pytest.mark.slow), "Adam"])
def test_a_resumed_run_ends_as_an_uninterrupted_one_with_its_weights_and_its_ledger(
    monkeypatch, tmp_path, where, at, seconds, optimizer
):
    options = {"method": dpbnn.SGD(learning_rate=0.1, optimizer=optimizer), "model": network(0.3)}
    expected = fit(**options)
    options |= {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=seconds)}
    fit_interrupted(monkeypatch, where, at, **options)
    assert (tmp_path / "run").exists()
    release = fit(**options)
    assert same_weights(release, expected)
    assert release.settings["releases_charged"] == expected.settings["releases_charged"] == 20
    assert release.settings["steps_taken"] == expected.settings["steps_taken"]
    assert not (tmp_path / "run").exists()


class Augmented(Dataset):
    """Draws while it is read."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row] + float(self.draw()), Y[row]


@pytest.mark.parametrize(("workers", "draw"), [(0, lambda: torch.rand(())), (1, np.random.rand)])
def test_a_resumed_run_reads_what_it_would_have_read(monkeypatch, tmp_path, workers, draw):
    """A step that is repeated draws the same: otherwise it would be dropped and charged again."""
    options = {"x": Augmented(draw), "y": None, "method": dpbnn.SGD(learning_rate=0.1)}
    options |= {"execution": dpbnn.Execution(checkpoint_seconds=1000.0, dataset_workers=workers)}
    expected = fit(**options)
    options |= {"checkpoint": tmp_path / "run"}
    fit_interrupted(monkeypatch, "clip_and_sum", 8, **options)
    release = fit(**options)
    assert same_weights(release, expected)
    assert release.settings["releases_charged"] == 20


class Scaled(nn.Module):
    """Its scale is a single number without a dimension."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = network(), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * self.layer(x)


def test_a_model_in_float64_with_a_weight_without_dimensions_is_resumed(monkeypatch, tmp_path):
    options = {"x": X.double(), "model": Scaled().double()}
    expected = fit(**options)
    fit_interrupted(monkeypatch, "fingerprint", 8, checkpoint=tmp_path / "run", **options)
    assert same_weights(fit(checkpoint=tmp_path / "run", **options), expected)


@pytest.mark.guarantees("Files are written atomically, readable by their owner alone, and gone at the end.")
def test_a_checkpoint_that_is_kept_gives_the_same_release_again_also_elsewhere(monkeypatch, tmp_path):
    options = {"checkpoint": tmp_path / "run", "keep_checkpoint": True, "unsafe_seed": None, "seed": 1}
    first = fit(execution=SELDOM, **options)
    again = fit(execution=SELDOM, **options)
    elsewhere = fit(execution=dpbnn.Execution(precision="bfloat16"), **options)
    for other in (again, elsewhere):
        assert same_weights(first, other)
        assert other.settings == first.settings
    last = fit(**options | {"keep_checkpoint": False})
    assert same_weights(first, last)
    assert not (tmp_path / "run").exists()


def killed(tmp_path, way, points):
    command = [sys.executable, "-W", "ignore", "-m", "tests.training.checkpoint.crashing", str(tmp_path), way]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *map(str, points)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_as_if_nothing_had_happened(outcomes):
    for outcome in outcomes:
        assert outcome["again"] == 0, outcome
        assert outcome["same"], outcome
        assert outcome["charged"] == outcome["used"] == 4, outcome
        assert not outcome["left"], outcome


def test_a_killed_run_resumes(tmp_path):
    outcomes = killed(tmp_path, "call", [27, 46])
    assert all(outcome["first"] == -9 and outcome["begun"] for outcome in outcomes)
    assert_as_if_nothing_had_happened(outcomes)


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_time_resumes(tmp_path):
    outcomes = killed(tmp_path, "time", range(0, 90, 9))
    assert sum(outcome["begun"] for outcome in outcomes) > 5
    assert_as_if_nothing_had_happened(outcomes)


@pytest.mark.slow
def test_a_run_that_is_killed_in_any_call_of_the_file_system_resumes_unless_it_was_over(tmp_path):
    outcomes = killed(tmp_path, "call", range(1, 76))
    over = [outcome for outcome in outcomes if outcome["first"] == 0]
    refused = [outcome for outcome in outcomes if outcome["again"] != 0]
    assert len(over) > 3, "more calls than there are"
    assert all(outcome["first"] == -9 and outcome["used"] == 4 and not outcome["begun"] for outcome in refused), (
        "all was released, and the state removed"
    )
    assert len(refused) < 5
    assert_as_if_nothing_had_happened([outcome for outcome in outcomes if outcome["again"] == 0])


def test_a_run_that_the_user_has_seeded_does_not_go_on_inside_a_budget(monkeypatch, tmp_path):
    """Also where the call that goes on with it gives no seed: its guarantee stays void."""
    fit_interrupted(monkeypatch, "clip_and_sum", 8, checkpoint=tmp_path / "run", execution=ALWAYS)
    with dpbnn.BudgetAccountant(100.0, 0.1) as budget, pytest.raises(dpbnn.DpbnnError, match="void"):
        fit(checkpoint=tmp_path / "run", execution=ALWAYS, unsafe_seed=None)
    assert budget.spent() == (0.0, 0.0)
    assert "unsafe_seed" in str(fit(checkpoint=tmp_path / "run", execution=ALWAYS, unsafe_seed=None).guarantee)
