"""The folder of a checkpoint: what is written to it and when, and what is refused when it is opened."""

import errno
import os
import stat

import pytest
import torch

import dpbnn
from dpbnn.training.checkpoint import folder, opened
from tests.training.checkpoint.interrupting import Interrupt, fit_interrupted, lines_in, saved_in
from tests.training.test_fit import X, fit, same_weights

ALWAYS = dpbnn.Execution(checkpoint_seconds=0.0)


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
