"""One run's checkpoint folder, open for its one worker."""

import hashlib
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import PRIVATE_FOLDER, explained, is_partial, replace_file, sync_folder
from dpbnn.files.claim import LOCK, OWNER, Claim, locked
from dpbnn.privacy.ledger import ChargedStep, Ledger
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.training.checkpoint.journal import HEADER_BYTES, KEY_ID_BYTES, RUN_BYTES, Journal, Line

__all__ = ["Checkpoint", "Saved", "opened"]

VERSION = 2
STATE, JOURNAL = "state", "journal"
FILES = (LOCK, OWNER, STATE, JOURNAL)


@dataclass
class Saved:
    """A run as the state of a checkpoint holds it."""

    key: bytes
    source: str
    step: int
    state: Mapping[str, Any]
    digests: Mapping[str, bytes]
    environment: Mapping[str, str]


class Checkpoint:
    """A folder whose lock this worker holds.

    `is_begun` says whether it holds a run that can go on, `is_taken_over` whether it was another host's until now.
    """

    def __init__(self, claim: Claim, take_over: bool) -> None:
        self.path = claim.folder
        self._saved: Saved | None = None
        self._lines: list[Line] = []
        self._claim = claim
        self._state, self._journal_file = self.path / STATE, self.path / JOURNAL
        self._written, self._cost, self.is_begun = -math.inf, 0.0, False
        with explained(self.path):
            values = self._read()
            self.is_taken_over = claim.take(take_over, is_begun=values is not None)
            if (values is not None) != self._state.exists():
                raise DpbnnError(f"{self.path} is worked on by another process or thread; wait until it ends.")
            for file in self.path.iterdir():
                if file.name not in FILES:  # left in the middle of writing, also by a paused former owner: has a key
                    file.unlink(missing_ok=True)
            if values is None:
                self._begin()
            else:
                self._resume(values)

    def resumed(self) -> Saved | None:
        """The run that was interrupted, or None; it is given once and then let go, since it may be large."""
        saved, self._saved = self._saved, None
        return saved

    @property
    def is_seeded_by_user(self) -> bool:
        """Whether the interrupted run was begun with `unsafe_seed`: its guarantee is void, whoever goes on with it."""
        return self._saved is not None and Randomness(self._saved.key, self._saved.source).is_seeded_by_user

    def is_due(self, seconds: float) -> bool:
        """Whether the last write is over `seconds` ago, and writes take at most a twentieth of the time."""
        age = time.monotonic() - self._written
        return age > seconds and (seconds == 0 or age > 20 * self._cost)

    def check(self, saved: Saved, digests: Mapping[str, bytes]) -> None:
        """Refuse to continue with anything that has changed."""
        changed = [name for name, digest in digests.items() if saved.digests.get(name) != digest]
        if changed:
            raise DpbnnError(
                f"checkpoint {self.path} belongs to another run: {' and '.join(changed)} changed. Run again with what "
                "it was made with, or delete it; what that run has released stays spent."
            )

    def write(self, saved: Saved) -> None:
        """Replace the state; what was there stays whole until the new one is. What follows is charged to its key.

        The first one is on the disk before anything is released: a journal with lines and no state is a damaged one.
        """
        start = time.monotonic()
        journal = {"run": self._journal.run, "length": self._journal.length, "digest": self._journal.digest}
        values = vars(saved) | journal | {"version": VERSION}
        with explained(self.path):
            replace_file(self._state, self._claim.token, lambda file: torch.save(values, file), self._claim.check)
        self._key_id, self.is_begun = _id_of(saved.key), True
        self._written = time.monotonic()
        self._cost = self._written - start

    def charges(self) -> list[ChargedStep]:
        """The releases in the journal when it was opened; only those with the present key have a mark."""
        return [self._charged_step(line) for line in self._lines]

    def charge(self, ledger: Ledger, step: int, mark: int) -> None:
        """Enter a release in the journal and in the ledger, if the plan has room for it: only then may it be used.

        The order is what makes this safe with a worker on another host that takes over at any moment. It writes its
        token and then reads the journal; here the line is written and then the token read. So either it has read the
        line, and counts it, or the token is seen here, and the release is not used.
        """
        with explained(self.path):
            self._claim.check()
            self._catch_up(ledger)
            if not ledger.can_afford(step):
                return
            self._journal.append(Line(step, mark, self._key_id))
            self._catch_up(ledger)
            self._claim.check()

    def remove(self) -> None:
        """The run is over: nothing secret stays behind.

        The state goes first, with the key. If it outlasted the journal or the lock, another worker could go on from it.
        """
        with explained(self.path):
            self._claim.check()
            os.unlink(self._state)
        try:
            self._claim.remove_folder()
        except OSError as error:  # the release is all that is left of the run: it must not be lost for this
            text = f"checkpoint {self.path} cannot be removed: {error.strerror}. It holds no key any more; delete it."
            warn(text)

    def close(self) -> None:
        """Leave nothing behind where no run has begun."""
        if self.is_begun:
            return
        with suppress(OSError, DpbnnError):
            self._claim.check()
            self._claim.remove_folder()

    def _read(self) -> dict[str, Any] | None:
        if not self._state.exists():
            return None
        try:
            values = torch.load(self._state, map_location=_here, weights_only=True)
            version = values["version"]
        except (OSError, MemoryError):  # the file may be whole
            raise
        except Exception as error:  # a damaged file raises anything
            raise DpbnnError(
                f"checkpoint {self.path} cannot be read: its state is damaged. What it has released stays spent: "
                "delete it, and start again under a new budget."
            ) from error
        if version != VERSION:
            raise DpbnnError(
                f"checkpoint {self.path} has format {version}, and this dpbnn reads {VERSION}. Checkpoints are "
                "temporary files that no other version goes on with: finish the run with the dpbnn that began it, or "
                "delete it; what it has released stays spent."
            )
        return dict(values)

    def _begin(self) -> None:
        if self._journal_file.exists() and self._journal_file.stat().st_size > HEADER_BYTES:
            raise DpbnnError(
                f"checkpoint {self.path} cannot be continued: its state is missing, perhaps because the run had ended. "
                "What it has released stays spent: delete the checkpoint, and start again under a new budget."
            )
        os.chmod(self.path, PRIVATE_FOLDER)
        self._journal = Journal(self._journal_file, secrets.token_bytes(RUN_BYTES))
        self._journal.begin(self._claim.token, self._claim.check)

    def _resume(self, values: Mapping[str, Any]) -> None:
        self._journal = Journal(self._journal_file, values["run"])
        self._lines = self._journal.resume(values["length"], values["digest"])
        self._saved = Saved(**{field.name: values[field.name] for field in fields(Saved)})
        self._key_id, self.is_begun = _id_of(self._saved.key), True

    def _catch_up(self, ledger: Ledger) -> None:
        for line in self._journal.further():
            ledger.replay(*self._charged_step(line))

    def _charged_step(self, line: Line) -> ChargedStep:
        return line.step, line.mark if line.key_id == self._key_id else None


@contextmanager
def opened(path: Any, take_over: bool = False) -> Iterator[Checkpoint | None]:
    """The checkpoint in a folder, from before it is read until it is removed or left; None where no path is given."""
    if not isinstance(take_over, bool):
        _validate.refuse("take_over", "True or False", take_over)
    if path is None:
        yield None
        return
    with locked(_made(path)) as claim:
        checkpoint = Checkpoint(claim, take_over)
        try:
            yield checkpoint
        finally:
            checkpoint.close()


def _made(path: Any) -> Path:
    """The folder, which is there from now on; one with other files in it is not touched."""
    if not isinstance(path, (str, os.PathLike)):
        _validate.refuse("checkpoint", "the path of a folder", path)
    folder = Path(path)
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            sync_folder(folder.parent)
        names = {file.name for file in folder.iterdir()}
    except OSError as error:
        raise DpbnnError(f"checkpoint {folder} must be a folder that can be made: {error.strerror}.") from error
    if any(name not in FILES and not is_partial(name, FILES) for name in names):
        raise DpbnnError(f"checkpoint {folder} exists and is no checkpoint; choose another path.")
    return folder


def _here(storage: Any, location: str) -> Any:
    """Keep tensors on the device that they were on, or on the CPU if it is not here."""
    device = torch.device(location)
    is_missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    return storage if is_missing else None


def _id_of(key: bytes) -> bytes:
    """Tells keys apart in the journal, and says nothing else about them."""
    return hashlib.blake2b(b"journal", key=key, digest_size=KEY_ID_BYTES).digest()
