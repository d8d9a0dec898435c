"""A run that is resumed ends as if nothing had happened, or is refused."""

import errno
import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import dpbnn
from dpbnn.errors import DpbnnWarning
from dpbnn.training.checkpoint import folder, opened
from tests.training.checkpoint.interrupting import Interrupt, Noises, fit_interrupted, lines_in, other_bits, saved_in
from tests.training.test_fit import X, Y, fit, network, plan, same_weights

SELDOM, ALWAYS = dpbnn.Execution(checkpoint_seconds=1000.0), dpbnn.Execution(checkpoint_seconds=0.0)


@pytest.mark.guarantees(
    "A run resumed in the same environment ends as an uninterrupted one, with its weights and its ledger."
)
@pytest.mark.parametrize("seconds", [0.0, 1000.0])
@pytest.mark.parametrize(
    ("where", "at"), [("clip_and_sum", 1), ("clip_and_sum", 8), ("add_noise", 8), ("fingerprint", 20)]
)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
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


def test_a_resumed_run_keeps_its_own_key(monkeypatch, tmp_path):
    """The key of the interrupted run comes from its checkpoint; a second interruption changes nothing either."""
    options = {"checkpoint": tmp_path / "run", "unsafe_seed": None}
    noises = Noises(monkeypatch)
    for at in (5, 4):
        fit_interrupted(monkeypatch, "clip_and_sum", at, **options)
    release = fit(**options)
    assert release.settings["releases_charged"] == 20
    assert release.guarantee.voided_by == ()
    assert len(noises.keys) == 1


def test_a_repeated_step_that_comes_out_differently_is_dropped_and_charged_again_with_fresh_noise(
    monkeypatch, tmp_path
):
    """Another machine, on which the last bits differ: the same noise on another sum must never be used."""
    options = {"checkpoint": tmp_path / "run", "execution": SELDOM}
    fit_interrupted(monkeypatch, "clip_and_sum", 9, **options)
    first_key = saved_in(tmp_path / "run").key
    assert lines_in(tmp_path / "run") == 8
    updates, noises, original_update = [], Noises(monkeypatch), dpbnn.SGD.update

    def noted_update(self, state, noisy, step):
        updates.append(step)
        return original_update(self, state, noisy, step)

    other_bits(monkeypatch)
    monkeypatch.setattr(dpbnn.SGD, "update", noted_update)
    with pytest.warns(DpbnnWarning, match="8 steps are charged again, and the run ends"):
        release = fit(**options)
    assert noises.drawn[0][:2] == (0, first_key)  # comes out differently, and is dropped
    assert [step for step, key, _ in noises.drawn if key != first_key] == list(range(20))
    assert len(noises.keys) == 2
    assert release.settings["releases_charged"] == 20
    assert updates == list(range(12))  # 8 were charged before, 12 now: the plan's 20 are spent, and the rest is dropped
    assert "unsafe_seed" in str(release.guarantee)


@pytest.mark.parametrize("at", ["write", "charge"])
def test_the_fresh_key_is_on_disk_before_anything_is_released_with_it(monkeypatch, tmp_path, at):
    """Interrupted before, the old key with its marks is there; interrupted after, the new one."""
    options = {"checkpoint": tmp_path / "run", "execution": SELDOM}
    fit_interrupted(monkeypatch, "clip_and_sum", 9, **options)
    first_key = saved_in(tmp_path / "run").key

    def interrupted(*_):
        raise Interrupt

    with monkeypatch.context() as patch:
        other_bits(patch)
        patch.setattr(folder.Checkpoint, at, interrupted)
        patch.setattr("dpbnn.training.position.warn", lambda _: None)
        with pytest.raises(Interrupt):
            fit(**options)
    assert (saved_in(tmp_path / "run").key == first_key) == (at == "write")
    assert lines_in(tmp_path / "run") == 8


@pytest.mark.guarantees("A checkpoint of other data, another model or another plan is refused.")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"x": X + 1e-6}, "the data"),
        ({"x": X[:-1], "y": Y[:-1]}, "the data"),
        ({"y": (Y + 1) % 3}, "the data"),
        ({"model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))}, "the model"),
        ({"the_plan": plan(noise=0.9)}, "the plan"),
        ({"the_plan": plan(steps=21)}, "the plan"),
        ({"method": dpbnn.SGD(learning_rate=0.2)}, "the method"),
    ],
)
def test_a_checkpoint_of_other_data_another_model_or_another_plan_is_refused(monkeypatch, tmp_path, change, what):
    fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
    with pytest.raises(dpbnn.DpbnnError, match=f"belongs to another run: {what} changed"):
        fit(checkpoint=tmp_path / "run", **change)
    assert same_weights(fit(checkpoint=tmp_path / "run"), fit())


@pytest.mark.guarantees("Files are written atomically, readable by their owner alone, and gone at the end.")
def test_files_are_readable_by_their_owner_alone_and_hold_no_data(monkeypatch, tmp_path):
    (tmp_path / "run").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    files = list((tmp_path / "run").iterdir())
    assert {file.name for file in files} == {"lock", "owner", "state", "journal"}
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert all(X.numpy()[0].tobytes() not in file.read_bytes() for file in files)


def test_a_state_that_was_cut_off_in_writing_leaves_the_one_before_whole(monkeypatch, tmp_path):
    options = {"checkpoint": tmp_path / "run", "execution": ALWAYS}
    original = torch.save

    def cut_off(values, file):
        original(values, file)
        if values["step"] == 6:
            file.truncate(100)
            raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", cut_off)
        patch.setattr(os, "unlink", lambda *_: None)  # as when it is killed
        with pytest.raises(Interrupt):
            fit(**options)
    (left,) = (tmp_path / "run").glob("state.*.new")
    assert saved_in(tmp_path / "run").step == 5
    assert not left.exists(), "it may hold a key"
    assert same_weights(fit(**options), fit())


def test_a_folder_that_is_no_checkpoint_or_damaged_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(dpbnn.DpbnnError, match="is no checkpoint"):
        fit(checkpoint=tmp_path / "other")
    (tmp_path / "other" / "thesis.txt").rename(tmp_path / "other" / "thesis.new")
    with pytest.raises(dpbnn.DpbnnError, match="is no checkpoint"):
        fit(checkpoint=tmp_path / "other")
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["thesis.new"]
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state").write_bytes(b"nonsense")
    with pytest.raises(dpbnn.DpbnnError, match="its state is damaged"):
        fit(checkpoint=tmp_path / "damaged")
    with pytest.raises(dpbnn.DpbnnError, match="must be a folder that can be made"):
        fit(checkpoint=tmp_path / "other" / "thesis.new" / "run")
    with pytest.raises(dpbnn.DpbnnError, match="checkpoint must be the path of a folder, got 7"):
        fit(checkpoint=7)
    with pytest.raises(dpbnn.DpbnnError, match="take_over must be True or False, got 'yes'"):
        fit(checkpoint=tmp_path / "run", take_over="yes")


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), MemoryError()])
def test_a_state_that_cannot_be_read_now_is_not_called_damaged(monkeypatch, tmp_path, error):
    """Nobody is told to delete a run that can go on."""

    def fails(*_, **__):
        raise error

    fit_interrupted(monkeypatch, "clip_and_sum", 5, checkpoint=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", fails)
        with pytest.raises((dpbnn.DpbnnError, MemoryError)) as raised:
            fit(checkpoint=tmp_path / "run")
    assert "damaged" not in str(raised.value)
    assert isinstance(error, MemoryError) or "cannot be read or written: Permission denied" in str(raised.value)
    assert same_weights(fit(checkpoint=tmp_path / "run"), fit())


def test_a_checkpoint_of_the_old_format_is_refused_with_what_to_do(monkeypatch, tmp_path):
    (tmp_path / "run").mkdir()
    old = {"key": b"0" * 32, "source": "", "step": 3, "state": {}, "digests": {"the data": b"0"}, "version": 1}
    torch.save(old, tmp_path / "run" / "state")
    (tmp_path / "run" / "journal").write_bytes(b"0" * 48)
    message = (
        "has format 1, and this dpbnn reads 2. Checkpoints are temporary files .* what it has released stays spent"
    )
    with pytest.raises(dpbnn.DpbnnError, match=message):
        fit(checkpoint=tmp_path / "run")
    assert (tmp_path / "run" / "journal").read_bytes() == b"0" * 48


def test_a_state_from_a_device_that_is_not_here_is_read_to_the_cpu():
    assert folder._here("numbers", "cuda:77") == "numbers"
    assert folder._here("numbers", "cpu") is None


def test_a_run_that_is_refused_before_it_begins_leaves_nothing(tmp_path):
    with (
        dpbnn.BudgetAccountant(epsilon=1e-3, delta=1e-3),
        pytest.raises(dpbnn.BudgetError, match="beyond the budget"),
    ):
        fit(checkpoint=tmp_path / "run", unsafe_seed=None)
    assert not (tmp_path / "run").exists()
    with pytest.raises(dpbnn.DpbnnError, match="one row per record"):
        fit(x=X[:-1], checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_somebody_deletes_of_a_run_that_goes_on_does_not_make_it_a_new_one(monkeypatch, tmp_path):
    update = dpbnn.SGD.update

    def deleting(self, state, noisy, step):
        if step == 3:
            (tmp_path / "run" / "state").unlink()
            raise Interrupt
        return update(self, state, noisy, step)

    monkeypatch.setattr(dpbnn.SGD, "update", deleting)
    with pytest.raises(Interrupt):
        fit(checkpoint=tmp_path / "run")
    assert lines_in(tmp_path / "run") == 4


def test_checkpoints_that_take_long_to_write_are_written_less_often(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(folder.time, "monotonic", lambda: now[0])
    with opened(tmp_path / "run") as found:
        assert found.is_due(10)

        def slow(descriptor):
            now[0] += 1.5  # seconds, of the file and of the folder

        monkeypatch.setattr(os, "fsync", slow)
        found.write(folder.Saved(b"key", "source", 0, {}, {}, {}))
        for later, due in [(9, False), (11, False), (59, False), (61, True)]:
            now[0] = 3.0 + later
            assert found.is_due(10) is due
        now[0] = 3.1
        assert found.is_due(0)


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
