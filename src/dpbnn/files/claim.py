"""One worker for one folder: a lock that ends with its process, and a file that names the owner.

The lock keeps other processes and threads of the same host out, and those of other hosts where the file system's locks
reach that far. Where they do not, the owner's name does: a folder of another host is refused. A user who knows that the
worker there is gone may take the folder over. There is no lease that runs out: a worker that was only paused would wake
up and use its noise again. Instead every worker looks for its token after each line that it writes to the journal, and
uses nothing if the token is no longer there.
"""

import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import BINARY, PRIVATE_FILE, explained, replace_file

__all__ = ["LOCK", "OWNER", "Claim", "host", "locked"]

LOCK, OWNER = "lock", "owner"
MACHINE_ID = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

_held: set[int] = set()
"""Descriptors of the locks of this process."""


def host() -> str:
    """This host's name, with a hash of its machine id where there is one: two hosts may have the same name."""
    for file in MACHINE_ID:
        with suppress(OSError):
            machine = hashlib.blake2b(file.read_bytes(), digest_size=6, person=b"dpbnn").hexdigest()
            return f"{platform.node()} ({machine})"
    return platform.node()


class Claim:
    """The right to work on a folder whose lock is held; `take` makes this worker its owner too."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder, self.token = folder, secrets.token_hex(16)
        self._owner, self._lock = folder / OWNER, folder / LOCK
        self._descriptor = descriptor

    def take(self, take_over: bool, is_begun: bool) -> bool:
        """Become the owner, and return whether another host owned the folder; refuse that without `take_over`.

        Where a run has begun and no owner is named, another host may be the owner. This comes before the journal is
        read: a former owner that writes a line later no longer finds its token after it.
        """
        with explained(self.folder):
            former = self._read()
        is_foreign = is_begun if former is None else former["host"] != host()
        if is_foreign and not take_over:
            owner = "does not say whose it is" if former is None else f"belongs to a worker on {former['host']}"
            raise DpbnnError(
                f"{self.folder} {owner}, and this is {host()}. If no other worker goes on with it, take it over: "
                "take_over=True, or --take-over on the command line. Noise is then drawn afresh, and what was released "
                "stays charged."
            )
        values = json.dumps({"host": host(), "token": self.token}).encode()
        with explained(self.folder):
            replace_file(self._owner, self.token, lambda file: file.write(values))
        return is_foreign

    def check(self) -> None:
        """Raise if the folder is no longer this worker's."""
        with explained(self.folder):
            now = self._read()
            if now is None:
                raise FileNotFoundError
        if now["token"] != self.token:
            raise DpbnnError(
                f"{self.folder} was taken over by a worker on {now['host']}; this one stops, and its last step is not "
                "released."
            )

    def remove_folder(self) -> None:
        """Remove the folder with all its files: the lock last, since it keeps others out."""
        for file in self.folder.iterdir():
            if file.is_dir():
                shutil.rmtree(file)
            elif file.name != LOCK:
                file.unlink()
        if os.name == "nt":  # where open files are not deleted
            _close(self._descriptor)
        self._lock.unlink(missing_ok=True)
        self.folder.rmdir()

    def _read(self) -> dict[str, str] | None:
        try:
            owner = json.loads(self._owner.read_bytes())
            return {name: str(owner[name]) for name in ("host", "token")}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return {"host": "a host whose name is damaged", "token": ""}


@contextmanager
def locked(folder: Path, cure: str = "wait until it ends, or stop it") -> Iterator[Claim]:
    """Hold the lock of an existing folder, or refuse at once: the other worker may take days.

    `cure` says what to do about it.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | BINARY, PRIVATE_FILE)
    except OSError as error:
        raise DpbnnError(f"{folder} cannot be locked: {error.strerror}.") from error
    _held.add(descriptor)
    try:
        _lock(folder, descriptor, cure)
        yield Claim(folder, descriptor)
    finally:
        _close(descriptor)


def _lock(folder: Path, descriptor: int, cure: str) -> None:
    try:
        is_free = lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        raise DpbnnError(
            f"{folder} cannot be locked: {error.strerror}. It must lie on a file system with locks, such as a local "
            "disk: two workers at once would use the same noise twice."
        ) from error
    # Another worker may have removed the folder after the lock file was opened here. Then this locks a file without a
    # name, which keeps nobody out.
    if not is_free or not _is_there(folder / LOCK, descriptor):
        raise DpbnnError(f"{folder} is worked on by another process or thread; {cure}.")


def _is_there(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _close(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)  # which frees the lock


def _close_all() -> None:
    """Give up all locks in a forked child, such as one that reads records: it may outlive its parent."""
    for descriptor in list(_held):
        _close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
