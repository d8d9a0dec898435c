"""The disk is full, or fails, in any call: nothing is released that is not charged, and the run goes on."""

import errno
import os
import warnings
from itertools import count

import pytest
from torch import nn

import dpbnn
from dpbnn.errors import DpbnnError, DpbnnWarning
from tests.training.checkpoint.crashing import at_call, note_used_releases, used_releases
from tests.training.checkpoint.interrupting import other_bits
from tests.training.test_fit import fit, plan, same_weights

ALWAYS = {"checkpoint_seconds": 0.0}


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fails_at(monkeypatch, number, log, path, **options):
    """A run in which the disk is full in the given call: the calls that it made, and its release, None if it failed."""
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DpbnnWarning)
        note_used_releases(log, patch.setattr)
        calls = at_call(number, full, patch.setattr)
        try:
            return calls, fit(checkpoint=path, **options)
        except DpbnnError as error:
            if "No space left on device" not in str(error) or "\n" in str(error):
                raise
            return calls, None


def enumerated(monkeypatch, tmp_path, check, **options):
    """For every call in turn: fail there, and resume. How many calls there are."""
    for number in count(1):
        path, log = tmp_path / f"run-{number}", tmp_path / f"log-{number}"
        calls, release = fails_at(monkeypatch, number, log, path, **options)
        if release is None:
            _, release = fails_at(monkeypatch, 0, log, path, **options)
        check(number, release, used_releases(log))
        assert not (path / "state").exists(), number
        if calls[0] < number:
            break
    return calls[0]


@pytest.mark.guarantees("Nothing is charged less than was released, wherever a run breaks off.")
@pytest.mark.parametrize("seconds", [1000.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_nothing_is_charged_less_than_was_released_wherever_a_run_breaks_off(monkeypatch, tmp_path, seconds):
    options = {"the_plan": plan(steps=3), "execution": dpbnn.Execution(checkpoint_seconds=seconds)}
    options |= {"model": nn.Linear(6, 3)}
    expected = fit(**options)

    def check(number, release, used):
        assert same_weights(release, expected), number
        assert len(used) == release.settings["releases_charged"] == 3, number

    assert enumerated(monkeypatch, tmp_path, check, **options) > 35


@pytest.mark.slow
def test_nothing_is_charged_less_than_was_released_where_a_resumed_run_breaks_off_too(monkeypatch, tmp_path):
    """It goes on with other bits each time, and so with a fresh key and other releases."""
    options = {"the_plan": plan(steps=4), "model": nn.Linear(6, 3)}
    execution = [dpbnn.Execution(checkpoint_seconds=1000.0, micro_batch_size=size) for size in (3, 5, 7)]
    for first in range(22, 34, 2):
        for second in count(1):
            path, log = tmp_path / f"run-{first}-{second}", tmp_path / f"log-{first}-{second}"
            _, release = fails_at(monkeypatch, first, log, path, execution=execution[0], **options)
            assert release is None
            calls, release = fails_at(monkeypatch, second, log, path, execution=execution[1], **options)
            if release is None:
                with monkeypatch.context() as patch:
                    other_bits(patch)
                    _, release = fails_at(patch, 0, log, path, execution=execution[second % 3], **options)
            assert len(used_releases(log)) <= release.settings["releases_charged"] <= 4, (first, second)
            if calls[0] < second:
                break
        assert second > 15


def test_a_checkpoint_that_cannot_be_removed_at_the_end_does_not_cost_the_release(monkeypatch, tmp_path):
    def fails(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rmdir", fails)
    with pytest.warns(DpbnnWarning, match="cannot be removed: Input/output error. It holds no key any more; delete it"):
        release = fit(checkpoint=tmp_path / "run")
    assert same_weights(release, fit())
    assert list((tmp_path / "run").iterdir()) == []


def test_a_key_that_cannot_be_removed_at_the_end_is_said_and_the_same_call_gives_the_release(monkeypatch, tmp_path):
    unlink = os.unlink

    def fails(file, *given, **options):
        if os.path.basename(file) == "state":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(file, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fails)
        with pytest.raises(DpbnnError, match="cannot be read or written: Input/output error"):
            fit(checkpoint=tmp_path / "run")
    assert same_weights(fit(checkpoint=tmp_path / "run"), fit())


@pytest.mark.guarantees("Files are written atomically, readable by their owner alone, and gone at the end.")
def test_files_are_written_atomically_and_on_the_disk_before_anything_relies_on_them(monkeypatch, tmp_path):
    """The bytes before the name, the folder before what follows: a journal, a state, then a line, then its use."""
    order, names = [], {}
    originals = {name: getattr(os, name) for name in ("open", "fsync", "replace", "close")}

    def opening(path, *given, **options):
        descriptor = originals["open"](path, *given, **options)
        names[descriptor] = os.path.basename(path).split(".")[0]
        return descriptor

    def replacing(source, target):
        order.append(f"name {os.path.basename(target)}")
        originals["replace"](source, target)

    update = dpbnn.SGD.update

    def using(*given):
        order.append("use")
        return update(*given)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append(f"sync {names[descriptor]}"))
    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(dpbnn.SGD, "update", using)
    fit(checkpoint=tmp_path / "run", the_plan=plan(steps=2), execution=dpbnn.Execution(**ALWAYS))

    def written(name):
        return [f"sync {name}", f"name {name}", "sync run"]

    step = ["sync journal", "use", *written("state")]
    assert order[1:] == [*written("owner"), *written("journal"), *written("state"), *step, *step]
    assert order[0] == f"sync {tmp_path.name}"
