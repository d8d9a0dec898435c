"""Claims: one worker holds a folder, its host and token stand there, and a former owner notices that it lost it."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import textwrap

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.files import claim
from dpbnn.files.claim import locked

BUSY = "is worked on by another process or thread"


def test_a_folder_is_locked_once_at_a_time_and_free_afterwards(tmp_path):
    with locked(tmp_path), pytest.raises(DpbnnError, match=f"{BUSY}; go away"), locked(tmp_path, "go away"):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(monkeypatch, tmp_path, number):
    def cannot(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(claim, "lock_descriptor", cannot)
    with (
        pytest.raises(DpbnnError, match=r"cannot be locked: .* on a file system with locks"),
        locked(tmp_path),
    ):
        pass


@pytest.mark.parametrize("is_made_again", [False, True])
def test_the_lock_of_a_file_that_is_no_longer_in_the_folder_keeps_nobody_out(monkeypatch, tmp_path, is_made_again):
    original = claim.lock_descriptor

    def removed(descriptor, **options):
        (tmp_path / "lock").unlink()
        if is_made_again:
            (tmp_path / "lock").touch()
        return original(descriptor, **options)

    monkeypatch.setattr(claim, "lock_descriptor", removed)
    with pytest.raises(DpbnnError, match=BUSY), locked(tmp_path):
        pass


def test_a_host_is_told_from_others_of_its_name_without_showing_its_machine_id(monkeypatch, tmp_path):
    monkeypatch.setattr(claim, "MACHINE_ID", (tmp_path / "none", tmp_path / "machine-id"))
    assert claim.host() == platform.node()
    hosts = set()
    for number in ("0123456789abcdef\n", "fedcba9876543210\n"):
        (tmp_path / "machine-id").write_text(number)
        hosts.add(claim.host())
        assert claim.host().startswith(f"{platform.node()} (")
        assert number.strip() not in claim.host()
    assert len(hosts) == 2


def test_every_owner_writes_its_host_and_a_token_that_no_other_has(tmp_path):
    tokens = set()
    for _ in range(2):
        with locked(tmp_path) as mine:
            assert not mine.take(take_over=False, is_begun=False)
            mine.check()
            owner = json.loads((tmp_path / "owner").read_text())
            assert owner == {"host": claim.host(), "token": mine.token}
            tokens.add(mine.token)
    assert len(tokens) == 2


def test_a_folder_of_another_host_is_taken_over_only_if_that_is_asked_for(monkeypatch, tmp_path):
    with locked(tmp_path) as mine:
        mine.take(take_over=False, is_begun=False)
        before = (tmp_path / "owner").read_text()
        with monkeypatch.context() as patch:
            patch.setattr(claim, "host", lambda: "elsewhere")
            other = claim.Claim(tmp_path, -1)
            with pytest.raises(DpbnnError, match=r"belongs to a worker on .*, and this is elsewhere\. .*take_over"):
                other.take(take_over=False, is_begun=True)
            assert (tmp_path / "owner").read_text() == before
            mine.check()
            assert other.take(take_over=True, is_begun=True)
            assert not other.take(take_over=True, is_begun=True), "it is its own by now"
        with pytest.raises(DpbnnError, match="was taken over by a worker on elsewhere; this one stops"):
            mine.check()
        (tmp_path / "owner").unlink()
        with pytest.raises(DpbnnError, match="was ended, removed or taken over by somebody else"):
            other.check()


@pytest.mark.parametrize(("content", "message"), [(None, "does not say whose it is"), ("?", "name is damaged")])
def test_a_folder_in_use_whose_owner_is_not_known_must_be_taken_over(tmp_path, content, message):
    if content is not None:
        (tmp_path / "owner").write_text(content)
    with locked(tmp_path) as mine:
        with pytest.raises(DpbnnError, match=message):
            mine.take(take_over=False, is_begun=True)
        assert mine.take(take_over=True, is_begun=True)


def test_a_folder_is_removed_with_its_lock_last(monkeypatch, tmp_path):
    folder, removed, unlink = tmp_path / "run", [], os.unlink
    (folder / "samples").mkdir(parents=True)

    def watched(path, *given, **options):
        with pytest.raises(DpbnnError, match=BUSY), locked(folder):
            pass
        removed.append(os.path.basename(path))
        unlink(path, *given, **options)

    with locked(folder) as mine:
        mine.take(take_over=False, is_begun=False)
        (folder / "samples" / "sample").touch()
        monkeypatch.setattr(os, "unlink", watched)
        mine.remove_folder()
    assert sorted(removed) == ["lock", "owner", "sample"]
    assert removed[-1] == "lock"
    assert not folder.exists()


@pytest.mark.slow
def test_a_forked_child_does_not_hold_the_lock_after_its_parent_is_gone(tmp_path):
    script = textwrap.dedent(
        """
        import os, sys, time
        from pathlib import Path
        from dpbnn.files.claim import locked
        with locked(Path(sys.argv[1])):
            read, write = os.pipe()
            if os.fork() == 0:
                os.close(1)
                os.write(write, b"!")
                time.sleep(30)
                os._exit(0)
            os.read(read, 1)
            print("ready", flush=True)
            os.kill(os.getpid(), 9)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
    with locked(tmp_path):
        pass


def test_the_lock_is_one_that_other_programs_see(tmp_path):
    with locked(tmp_path), (tmp_path / "lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
