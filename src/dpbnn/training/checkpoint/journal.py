"""The journal: a header, and a line for every release, which is on the disk before the release is used.

Each line holds the step, the fingerprint of what it released, the id of the key that its noise came from, and a
checksum. The order of the lines in the file is what counts: a worker that has written one reads the file up to it, and
uses the release only if the plan has room for all lines before it and for that one. So a release whose line has no room
was never used, whichever worker wrote it.
"""

import errno
import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import BINARY, replace_file

__all__ = ["HEADER_BYTES", "KEY_ID_BYTES", "LINE_BYTES", "RUN_BYTES", "Journal", "Line"]

MAGIC, VERSION = b"dpbnnjrn", 1
RUN_BYTES, KEY_ID_BYTES, CHECK_BYTES = 16, 8, 8
HEADER, LINE = struct.Struct(f"<8sQ{RUN_BYTES}s"), struct.Struct(f"<QQ{KEY_ID_BYTES}s")
HEADER_BYTES, LINE_BYTES = HEADER.size + CHECK_BYTES, LINE.size + CHECK_BYTES


@dataclass(frozen=True)
class Line:
    """One release: its step, its fingerprint, and the id of the key that its noise came from."""

    step: int
    mark: int
    key_id: bytes


class Journal:
    """The journal of the run with this id; `length` and `digest` are of what has been read of it so far."""

    def __init__(self, path: Path, run: bytes) -> None:
        self.length = 0
        self.run = run
        self._path, self._hash = path, hashlib.blake2b()

    @property
    def digest(self) -> bytes:
        """The digest of the first `length` bytes."""
        return self._hash.digest()

    def begin(self, writer: str, ready: Callable[[], None]) -> None:
        """Write a file with a header and no lines, in the place of any other; if `ready` raises, nothing is written."""
        header = _header(self.run)
        replace_file(self._path, writer, lambda file: file.write(header), ready)
        self._take(header)

    def resume(self, length: int, digest: bytes) -> list[Line]:
        """All lines, if the first `length` bytes have this digest; an incomplete last line is removed.

        A crash while it was written left it incomplete, so its release was never used.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            self._refuse("is missing")
        if len(content) < length:
            self._refuse("was cut")
        if (header := content[:HEADER_BYTES]) != _header(self.run):
            self._refuse("is that of another run" if _is_header(header) else "was changed")
        if hashlib.blake2b(content[:length]).digest() != digest:
            self._refuse("was changed")
        whole = len(content) - (len(content) - HEADER_BYTES) % LINE_BYTES
        if whole < len(content):
            self._cut(whole)
        self._take(content[:HEADER_BYTES])
        return self._lines(content[HEADER_BYTES:whole])

    def append(self, line: Line) -> None:
        """Write a line; it counts once it has been read again."""
        packed = LINE.pack(line.step, line.mark, line.key_id)
        packed += _check(packed, self.run)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | BINARY)  # never a new one
        try:
            if os.write(descriptor, packed) != len(packed):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def further(self) -> list[Line]:
        """The lines that any worker has added since the last time."""
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self.length:
                self._refuse("was cut")
            file.seek(self.length)
            content = file.read()
        if len(content) % LINE_BYTES:
            self._refuse("was cut")
        return self._lines(content)

    def _lines(self, content: bytes) -> list[Line]:
        lines = []
        for start in range(0, len(content), LINE_BYTES):
            packed, check = content[start : start + LINE.size], content[start + LINE.size : start + LINE_BYTES]
            if check != _check(packed, self.run):
                self._refuse("was changed")
            lines.append(Line(*LINE.unpack(packed)))
        self._take(content)
        return lines

    def _take(self, content: bytes) -> None:
        self.length += len(content)
        self._hash.update(content)

    def _cut(self, length: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | BINARY)
        try:
            os.ftruncate(descriptor, length)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _refuse(self, what: str) -> NoReturn:
        raise DpbnnError(
            f"checkpoint {self._path.parent} cannot be continued: its journal {what}, and without it nobody knows what "
            "the run has released. That stays spent: delete the checkpoint, and start again under a new budget."
        )


def _header(run: bytes) -> bytes:
    packed = HEADER.pack(MAGIC, VERSION, run)
    return packed + _check(packed, run)


def _is_header(header: bytes) -> bool:
    """Whether it is whole, whatever run it belongs to."""
    magic, version, run = HEADER.unpack(header[: HEADER.size])
    return (magic, version) == (MAGIC, VERSION) and header == _header(run)


def _check(content: bytes, run: bytes) -> bytes:
    return hashlib.blake2b(content, key=run, digest_size=CHECK_BYTES).digest()
