"""Files: the old one or the new one stands there whatever goes wrong, and nothing counts before it is on the disk."""

import errno
import os
import stat

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import explained, is_partial, replace_file, sync_files


def text(words):
    return lambda file: file.write(words.encode())


def fails(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_and_readable_by_its_owner_alone(tmp_path):
    for words in ("old", "new"):
        replace_file(tmp_path / "state", "me", text(words))
    assert (tmp_path / "state").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("call", ["write", "ready", "fsync", "replace"])
def test_whatever_fails_leaves_the_old_file_and_no_other(monkeypatch, tmp_path, call):
    replace_file(tmp_path / "state", "me", text("old"))
    write, ready = fails if call == "write" else text("new"), fails if call == "ready" else None
    with monkeypatch.context() as patch:
        if call in ("fsync", "replace"):
            patch.setattr(os, call, fails)
        with pytest.raises(OSError, match="No space left"):
            replace_file(tmp_path / "state", "me", write, ready)
    assert (tmp_path / "state").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_call_returns(monkeypatch, tmp_path):
    calls, fsync, replace = [], os.fsync, os.replace

    def syncing(descriptor):
        calls.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def replacing(*paths):
        calls.append("name")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    replace_file(tmp_path / "state", "me", text("new"), ready=lambda: calls.append("ready"))
    assert calls == ["sync file", "ready", "name", "sync folder"]
    (tmp_path / "journal").touch()
    calls.clear()
    sync_files(tmp_path)
    assert calls == ["sync file", "sync file", "sync folder"]


def test_two_writers_do_not_write_into_one_file(tmp_path):
    def while_another_writes(file):
        file.write(b"first")
        replace_file(tmp_path / "owner", "second", text("second"))

    replace_file(tmp_path / "owner", "first", while_another_writes)
    assert (tmp_path / "owner").read_text() == "first"


def test_files_that_a_crash_cut_short_are_known_by_their_names(tmp_path):
    left = []
    replace_file(tmp_path / "state", "token", lambda _: left.extend(os.listdir(tmp_path)))
    (partial,) = left
    assert is_partial(partial, {"state"})
    assert not is_partial(partial, {"journal"})
    assert not is_partial("state", {"state"})
    assert not is_partial("notes.new", {"state"})


def test_errors_of_a_folder_are_one_line_that_says_what_to_do(tmp_path):
    with (
        pytest.raises(DpbnnError, match="was ended, removed or taken over by somebody else") as error,
        explained(tmp_path),
    ):
        (tmp_path / "none").read_text()
    assert "\n" not in str(error.value)
    with (
        pytest.raises(DpbnnError, match=r"No space left on device\. Its journal keeps what was released"),
        explained(tmp_path),
    ):
        fails()
    with pytest.raises(ZeroDivisionError), explained(tmp_path):
        _ = 1 / 0
