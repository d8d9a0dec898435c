"""Folders of samples: each is that of one run, ever.

While a run lives it holds the folder's lock. The first file in it names the run by a token, which is drawn for each run
and comes back from its checkpoint alone.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from dpbnn.errors import DpbnnError
from dpbnn.files.claim import LOCK, locked
from dpbnn.types import Weights

__all__ = ["SampleFolder", "reserved"]

LAYOUT = "layout.json"


class SampleFolder:
    """One file for each weight, and a layout with the token of the run that made them."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]) -> None:
        self.path, self._shapes, self._dtypes = path, shapes, dtypes

    def is_of(self, token: object) -> bool:
        """Whether the run with this token has made the files."""
        try:
            return bool(json.loads((self.path / LAYOUT).read_text()) == self._layout(token))
        except (OSError, ValueError):
            return False

    def mapped(self, token: object) -> Weights:
        """Tensors that lie in the files of this run, which are made if there are none; another run's are refused."""
        if not self.is_of(token):
            _refuse_used(self.path)
            with _explained(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                with (self.path / LAYOUT).open("x") as file:  # of two runs at once, one is refused
                    json.dump(self._layout(token), file)
        return {
            name: torch.from_file(
                str(self.path / f"{position}.bin"), shared=True, size=math.prod(shape), dtype=self._dtypes[name]
            ).view(shape)
            for position, (name, shape) in enumerate(self._shapes.items())
        }

    def _layout(self, token: object) -> dict[str, object]:
        samples = {name: [*shape, str(self._dtypes[name])] for name, shape in self._shapes.items()}
        return {"run": token, "samples": samples}


@contextmanager
def reserved(path: Path | None, is_resumed: bool = False) -> Iterator[None]:
    """Keep others out of a run's folder, if it has one; refuse a folder that another run uses, or has used.

    Afterwards the lock is gone, and so is the folder, if nothing was put into it.
    """
    if path is None:
        yield
        return
    if not is_resumed:
        _refuse_used(path)
    with _explained(path):
        path.mkdir(parents=True, exist_ok=True)
    with locked(path, "give each run a path of its own"):
        if not is_resumed:
            _refuse_used(path)
        try:
            yield
        finally:
            with suppress(OSError):
                (path / LOCK).unlink()
                path.rmdir()


def _refuse_used(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(file.name != LOCK for file in path.iterdir())):
        raise DpbnnError(f"path {path} exists and is not this run's; choose another.")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise DpbnnError(f"path {path} exists and is not this run's; choose another.") from error
    except OSError as error:
        raise DpbnnError(f"path {path} must be a folder that can be made: {error.strerror}; choose another.") from error
