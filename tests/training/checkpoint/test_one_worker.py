"""One worker at a time: processes, threads, other hosts, and workers that were only paused."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.errors import DpbnnError, DpbnnWarning
from dpbnn.files import claim
from dpbnn.training.checkpoint import opened
from tests.training.checkpoint.crashing import at_call, note_used_releases, used_releases
from tests.training.checkpoint.interrupting import (
    Interrupt,
    Noises,
    fit_interrupted,
    interrupt_at,
    lines_in,
    released_in,
    saved_in,
)
from tests.training.test_fit import fit, plan, same_weights

SELDOM = dpbnn.Execution(checkpoint_seconds=1000.0)
BUSY = "is worked on by another process or thread; wait until it ends"
HOLD = (
    "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); input()"
)


@contextmanager
def holder(path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"1\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def elsewhere(patch, name="elsewhere"):
    """This worker is on another host, where the locks of the first one are not seen."""
    patch.setattr(claim, "host", lambda: name)
    patch.setattr(claim, "lock_descriptor", lambda *_, **__: True)


@pytest.mark.guarantees("One worker at a time works on a checkpoint.")
def test_one_process_at_a_time_works_on_a_checkpoint_and_a_crash_frees_it(monkeypatch, tmp_path):
    fit_interrupted(monkeypatch, "clip_and_sum", 5, checkpoint=tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    noises = Noises(monkeypatch)
    with holder(tmp_path / "run") as process:
        for options in ({}, {"take_over": True}, {"execution": dpbnn.Execution(precision="bfloat16")}):
            with pytest.raises(DpbnnError, match=BUSY):
                fit(checkpoint=tmp_path / "run", **options)
        assert not noises.drawn
        assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before
        process.send_signal(signal.SIGKILL)
        process.wait()
        release = fit(checkpoint=tmp_path / "run")
    assert same_weights(release, fit())


@pytest.mark.guarantees("One worker at a time works on a checkpoint.")
def test_one_thread_at_a_time_works_on_a_checkpoint(monkeypatch, tmp_path):
    inside, go_on, found, original = threading.Event(), threading.Event(), [], dpbnn.SGD.update

    def waiting(self, state, noisy, step):
        if step == 2:
            inside.set()
            assert go_on.wait(60)
        return original(self, state, noisy, step)

    monkeypatch.setattr(dpbnn.SGD, "update", waiting)
    first = threading.Thread(target=lambda: found.append(fit(checkpoint=tmp_path / "run")))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(DpbnnError, match=BUSY):
            fit(checkpoint=tmp_path / "run")
    finally:
        go_on.set()
        first.join()
    assert same_weights(found[0], fit())


def test_an_estimator_waits_for_nobody_either(tmp_path):
    sklearn = pytest.importorskip("dpbnn.sklearn")
    X, y = np.arange(200.0).reshape(100, 2), np.arange(100) % 2
    (tmp_path / "run").mkdir()
    model = sklearn.DPBayesClassifier(checkpoint=tmp_path / "run", bounds=(0, 200), epochs=9, take_over=True)
    with holder(tmp_path / "run"), pytest.raises(DpbnnError, match=BUSY):
        model.fit(X, y)
    assert model.fit(X, y).release_ is not None
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_lock_on_a_folder_that_its_owner_is_removing_is_none(monkeypatch, tmp_path, is_made_again):
    fit_interrupted(monkeypatch, "clip_and_sum", 5, checkpoint=tmp_path / "run")
    original = claim.lock_descriptor

    def removed(descriptor, **options):
        shutil.rmtree(tmp_path / "run")
        if is_made_again:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "lock").touch()
        return original(descriptor, **options)

    monkeypatch.setattr(claim, "lock_descriptor", removed)
    with pytest.raises(DpbnnError, match=BUSY):
        fit(checkpoint=tmp_path / "run")


def test_the_key_is_removed_first_and_the_lock_held_until_nothing_is_left(monkeypatch, tmp_path):
    """Whoever comes while the folder is removed finds it locked; whoever comes after a crash finds no key."""
    seen, unlink = [], os.unlink

    def watched(file, *given, **options):
        with pytest.raises(DpbnnError, match=BUSY):
            fit(checkpoint=tmp_path / "run")
        seen.append(os.path.basename(file))
        unlink(file, *given, **options)

    monkeypatch.setattr(os, "unlink", watched)
    fit(checkpoint=tmp_path / "run")
    assert (seen[0], sorted(seen[1:-1]), seen[-1]) == ("state", ["journal", "owner"], "lock")


def test_the_folder_names_its_owner(monkeypatch, tmp_path):
    monkeypatch.setattr(claim, "MACHINE_ID", (tmp_path / "machine-id",))
    alone = claim.host()
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    assert alone == platform.node()
    assert claim.host().startswith(alone)
    assert claim.host() != alone
    assert "0123456789abcdef" not in claim.host(), "machine ids are not shown around"
    owners = []
    for _ in range(2):
        fit_interrupted(monkeypatch, "clip_and_sum", 2, checkpoint=tmp_path / "run")
        owners.append((tmp_path / "run" / "owner").read_text())
    assert all(f'"host": "{claim.host()}"' in own for own in owners)
    assert owners[0] != owners[1], "every worker has a token of its own"


@pytest.mark.guarantees(
    "A checkpoint of another host is refused unless it is taken over, and its former owner then releases nothing more."
)
def test_a_checkpoint_of_another_host_is_refused_unless_it_is_taken_over(monkeypatch, tmp_path):
    options = {"checkpoint": tmp_path / "run", "execution": SELDOM}
    noises = Noises(monkeypatch)
    fit_interrupted(monkeypatch, "clip_and_sum", 6, **options)
    owner = (tmp_path / "run" / "owner").read_text()
    assert len(noises.drawn) == 5
    elsewhere(monkeypatch)
    with pytest.raises(DpbnnError, match=r"belongs to a worker on .*, and this is elsewhere\. .* take_over=True"):
        fit(**options)
    assert (tmp_path / "run" / "owner").read_text() == owner
    assert len(noises.drawn) == 5
    with pytest.warns(DpbnnWarning, match="5 steps are charged again"):
        release = fit(**options, take_over=True)
    assert release.settings["releases_charged"] == 20
    assert len(noises.keys) == 2
    assert noises.drawn[5][1] != noises.drawn[4][1], "a fresh key from the first release on"
    for step in range(5):
        (first, second) = noises.of(step)
        assert (first - second).abs().max() > 0.1
    assert len(noises.drawn) == 5 + 20, "of which the last five find no room, and are not used"


def test_a_checkpoint_that_does_not_say_whose_it_is_must_be_taken_over(monkeypatch, tmp_path):
    for damage in (lambda file: file.unlink(), lambda file: file.write_text("?")):
        fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
        damage(tmp_path / "run" / "owner")
        with pytest.raises(DpbnnError, match=r"does not say whose it is|whose name is damaged"):
            fit(checkpoint=tmp_path / "run")
        key = torch.load(tmp_path / "run" / "state", weights_only=True)["key"]
        noises = Noises(monkeypatch)
        with pytest.warns(DpbnnWarning, match="2 steps are charged again"):
            fit(checkpoint=tmp_path / "run", take_over=True)
        assert len(noises.keys) == 1
        assert key not in noises.keys


def test_a_checkpoint_that_is_taken_over_and_taken_back_gets_a_fresh_key_too(monkeypatch, tmp_path):
    fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
    first_key = saved_in(tmp_path / "run").key
    with monkeypatch.context() as patch:
        elsewhere(patch)
        with opened(tmp_path / "run", take_over=True):
            pass  # it crashes before it writes anything
    noises = Noises(monkeypatch)
    with pytest.warns(DpbnnWarning, match="2 steps are charged again"):
        fit(checkpoint=tmp_path / "run", take_over=True)
    assert first_key not in noises.keys


def test_taking_over_what_is_ones_own_changes_nothing(monkeypatch, tmp_path):
    fit_interrupted(monkeypatch, "clip_and_sum", 8, checkpoint=tmp_path / "run")
    assert same_weights(fit(checkpoint=tmp_path / "run", take_over=True), fit())


def test_a_worker_that_crashes_right_after_it_has_taken_over_draws_afresh_too(monkeypatch, tmp_path):
    """The folder is its own by then, but the key is still the other one's."""
    options = {"checkpoint": tmp_path / "run", "execution": SELDOM}
    fit_interrupted(monkeypatch, "clip_and_sum", 6, **options)
    first_key = saved_in(tmp_path / "run").key

    def interrupt(*_):
        raise Interrupt

    elsewhere(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(dpbnn.training.checkpoint.Checkpoint, "check", interrupt)
        with pytest.raises(Interrupt):
            fit(**options, take_over=True)
    assert saved_in(tmp_path / "run").key == first_key
    noises = Noises(monkeypatch)
    with pytest.warns(DpbnnWarning, match="5 steps"):
        fit(**options)
    assert first_key not in noises.keys


def taking_over_at(monkeypatch, path, log, number, steps_taken, **options):
    """A run that is paused in a call of the file system; meanwhile another host takes over and takes some steps.

    Then the first one wakes up, and at last the other one goes on to the end. How the first one ended (None if it
    makes fewer calls), and what it released after it was taken over, but for what was in the journal by then.
    """
    known, taken = set(), []

    def taken_over():
        with pytest.MonkeyPatch.context() as there, suppress(Interrupt, DpbnnError):
            elsewhere(there)
            is_over = len(used_releases(log)) == options["the_plan"].steps and not (path / "state").exists()
            if (path / "owner").exists() and not is_over:
                taken.append(known.update(released_in(path)))
                interrupt_at(there, steps_taken + 1)
                fit(checkpoint=path, take_over=True, **options)
        known.update(used_releases(log))

    with monkeypatch.context() as patch:
        calls, outcome = at_call(number, taken_over, patch.setattr), "ended"
        try:
            fit(checkpoint=path, **options)
        except DpbnnError as error:
            outcome = str(error)
        if calls[0] < number:
            return None, set()
        later = used_releases(log) - known
        if (path / "state").exists():
            elsewhere(patch)
            fit(checkpoint=path, **options)
    return outcome, later if taken else set()


@pytest.mark.guarantees(
    "A checkpoint of another host is refused unless it is taken over, and its former owner then releases nothing more."
)
@pytest.mark.parametrize(
    ("steps", "taken", "seconds"),
    [
        (2, 1, 1000.0),
        pytest.param(3, 9, 0.0, marks=pytest.mark.slow),
        pytest.param(3, 1, 0.0, marks=pytest.mark.slow),
        pytest.param(4, 2, 1000.0, marks=pytest.mark.slow),
    ],
)
def test_a_former_owner_that_was_paused_anywhere_releases_nothing_more(monkeypatch, tmp_path, steps, taken, seconds):
    execution = dpbnn.Execution(checkpoint_seconds=seconds)
    options = {"the_plan": plan(steps=steps), "execution": execution, "model": nn.Linear(6, 3), "unsafe_seed": None}
    outcomes = []
    for number in count(1):
        path, log = tmp_path / f"run-{number}", tmp_path / f"log-{number}"
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", DpbnnWarning)
            note_used_releases(log, patch.setattr)
            outcome, later = taking_over_at(patch, path, log, number, taken, **options)
        if outcome is None:
            break
        assert steps >= len(used_releases(log)), number
        assert not later, number
        outcomes.append(outcome)
    assert len(outcomes) > 25
    expected = "taken over by a worker on elsewhere; this one stops", "taken over by somebody else", "is worked on by"
    assert [own for own in outcomes if own != "ended" and not any(text in own for text in expected)] == []
    assert sum(outcome != "ended" for outcome in outcomes) > 10


PAUSED = """
import os, signal, sys
from pathlib import Path
import dpbnn
from dpbnn.training.steps import eager
from tests.training.checkpoint.crashing import note_used_releases
from tests.training.test_fit import fit
folder, release = Path(sys.argv[1]), eager.EagerSteps.release
note_used_releases(folder / "log")
def pausing(self, step):
    if step == 6:
        (folder / "paused").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return release(self, step)
eager.EagerSteps.release = pausing
try:
    fit(checkpoint=folder / "run", unsafe_seed=None, execution=dpbnn.Execution(checkpoint_seconds=1000.0))
except dpbnn.DpbnnError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_and_taken_over_stops_before_its_next_release(monkeypatch, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", PAUSED, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "paused").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        options = {"checkpoint": tmp_path / "run", "take_over": True, "unsafe_seed": None, "execution": SELDOM}
        with pytest.raises(DpbnnError, match=BUSY):
            fit(**options)  # it lives, on this host
        note_used_releases(tmp_path / "log", monkeypatch.setattr)
        elsewhere(monkeypatch)
        with pytest.warns(DpbnnWarning, match="6 steps are charged again"):
            fit_interrupted(monkeypatch, "add_noise", 4, **options)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert said.count("\n") == 1
    assert "was taken over by a worker on elsewhere; this one stops, and its last step is not released" in said
    assert lines_in(tmp_path / "run") in (9, 10), "6 and 3, and perhaps one that was not used"
    options["execution"] = dpbnn.Execution(micro_batch_size=7)
    with pytest.warns(DpbnnWarning, match="steps are charged again"):
        release = fit(**options)
    assert len(used_releases(tmp_path / "log")) <= release.settings["releases_charged"] == 20
