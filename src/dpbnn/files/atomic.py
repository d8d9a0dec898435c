"""Writing so that a crash or a power cut at any point leaves the old file or the new one, and never half of either."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dpbnn.errors import DpbnnError

__all__ = [
    "BINARY",
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "explained",
    "is_partial",
    "replace_file",
    "sync_files",
    "sync_folder",
]

NEW = ".new"
"""The ending of the name of a file that is still being written."""
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
BINARY = getattr(os, "O_BINARY", 0)
"""Windows would write other bytes without it."""


def replace_file(
    path: Path, writer: str, write: Callable[[BinaryIO], object], ready: Callable[[], None] | None = None
) -> None:
    """Write a file and put it in the place of `path`, unless `ready` raises; `writer` keeps two writers apart.

    The bytes are on the disk before the file gets its name: otherwise a power cut could leave an empty file of that
    name. The folder is on the disk before this returns: otherwise a power cut could bring the old file back after
    something has happened that relies on the new one, such as a release with a fresh key.
    """
    fresh = path.with_name(f"{path.name}.{writer}{NEW}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if ready is not None:
            ready()
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    sync_folder(path.parent)


def is_partial(name: str, files: Collection[str]) -> bool:
    """Whether a crash left a file of this name while one of `files` was written."""
    return name.endswith(NEW) and name.removesuffix(NEW).rpartition(".")[0] in files


def sync_folder(folder: Path) -> None:
    """Make sure that names which were made, changed or removed in a folder survive a power cut."""
    if os.name == "nt":  # Windows opens no folders, and writes names at once
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Make sure that the files of a folder survive a power cut, with their contents."""
    for file in folder.iterdir():
        with file.open("rb") as reading:
            os.fsync(reading.fileno())
    sync_folder(folder)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raise the system's errors on this folder as a `DpbnnError` of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise DpbnnError(
            f"{folder} was ended, removed or taken over by somebody else; this worker releases nothing more."
        ) from error
    except OSError as error:
        raise DpbnnError(
            f"{folder} cannot be read or written: {error.strerror or error}. Its journal keeps what was released; fix "
            "the cause, and the same call continues."
        ) from error
