"""Checkpoints: everything needed to continue a run exactly, and as secret as the data itself.

A checkpoint is a folder with two files, readable by their owner alone: ``state`` (the secret key, the method's state,
digests of data, model and plan), written whole or not at all, and ``journal``, one line of 16 bytes for every release,
written before the release is used. The folder is removed at the end of the run.

Guarantees:
    Resuming gives the weights and the ledger of an uninterrupted run.
    A checkpoint of other data, another model or another plan is refused.
    Files are written atomically, readable by their owner alone, and gone at the end.
"""

import hashlib
import math
import os
import shutil
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn import _validate
from dpbnn.privacy.ledger import Charge
from dpbnn.records import Records
from dpbnn.types import DpbnnError

__all__ = ["Checkpoint", "Saved", "digests"]

VERSION = 1
ENTRY = struct.Struct("<qQ")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint's state holds."""

    key: bytes
    source: str
    step: int
    state: Mapping[str, Any]
    digests: Mapping[str, bytes]


class Checkpoint:
    """One run's checkpoint folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            _validate.refuse("checkpoint", "the path of a folder", path)
        self.path = Path(path)
        self._state, self._journal = self.path / "state", self.path / "journal"
        self._written = -math.inf
        self._cost = 0.0
        is_empty = not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))
        if not is_empty and not self._state.exists():
            raise DpbnnError(f"checkpoint {self.path} exists and is no checkpoint; choose another path.")

    def is_due(self, seconds: float) -> bool:
        """Whether the state was written more than `seconds` ago, and writing it again costs a twentieth of the time."""
        age = time.monotonic() - self._written
        return age > seconds and (seconds == 0 or age > 20 * self._cost)

    def read(self) -> Saved | None:
        """The saved state, or None if there is none."""
        if not self._state.exists():
            return None
        try:
            values = torch.load(self._state, weights_only=True)
            version = values.pop("version")
        except Exception as error:  # a damaged file raises anything
            raise DpbnnError(f"checkpoint {self.path} cannot be read: {error}") from error
        if version != VERSION:
            raise DpbnnError(f"checkpoint {self.path} has version {version}, this dpbnn reads {VERSION}.")
        return Saved(**values)

    def check(self, saved: Saved, found: Mapping[str, bytes]) -> None:
        """Refuse to continue with anything that has changed."""
        changed = [name for name, digest in found.items() if saved.digests.get(name) != digest]
        if changed:
            raise DpbnnError(
                f"checkpoint {self.path} belongs to another run: {' and '.join(changed)} changed. Run again with what "
                "it was made with, or delete it; what that run has released stays spent."
            )

    def write(self, saved: Saved) -> None:
        """Replace the state; what was there stays whole until the new one is."""
        start = time.monotonic()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path / "state.new"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(vars(saved) | {"version": VERSION}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._state)
        self._written = time.monotonic()
        self._cost = self._written - start

    def note(self, step: int, mark: int) -> None:
        """Enter a release in the journal."""
        descriptor = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, ENTRY.pack(step, mark))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def charges(self) -> list[Charge]:
        """The journal; a last line that was cut off was never used, and is cut off whole."""
        if not self._journal.exists():
            return []
        content = self._journal.read_bytes()
        whole = len(content) - len(content) % ENTRY.size
        os.truncate(self._journal, whole)
        return list(ENTRY.iter_unpack(content[:whole]))

    def remove(self) -> None:
        """The run is over: nothing secret stays behind."""
        shutil.rmtree(self.path)


def digests(key: bytes, records: Records, model: nn.Module, settings: Mapping[str, str]) -> dict[str, bytes]:
    """Keyed digests of everything that must not change between an interruption and the resumption."""
    data = hashlib.blake2b(key=key)
    for batch in records.all():
        for values in batch:
            data.update(f"{values.dtype}{tuple(values.shape)}".encode())
            data.update(_bytes(values))
    structure = hashlib.blake2b(repr(model).encode(), key=key)
    for name, parameter in model.named_parameters():
        structure.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}{parameter.requires_grad}".encode())
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())
    for values in frozen.values():
        structure.update(_bytes(values))
    found = {"the data": data.digest(), "the model": structure.digest()}
    return found | {name: hashlib.blake2b(text.encode(), key=key).digest() for name, text in settings.items()}


def _bytes(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
