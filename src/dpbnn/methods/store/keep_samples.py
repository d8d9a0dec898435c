"""Keep iterates of the chain themselves, in memory or mapped from disk.

>>> import torch
>>> store = KeepSamples(thin=2).open({"w": torch.zeros(3)}, steps=12)
>>> for step in range(12):
...     iterate = {"w": torch.full((3,), float(step))}
...     store.expect(step)
...     store.write(step, iterate)
...     store.enter(step, iterate, importance=1.0)
>>> [weights["w"][0].item() for weights in store.posterior({}).draw(10, seed=0)]
[7.0, 9.0, 11.0]
"""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.files.claim import LOCK, locked
from dpbnn.methods.store.window import Window
from dpbnn.posterior import WeightSamples
from dpbnn.types import Weights

__all__ = ["KeepSamples", "SampleStore"]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUT = "layout.json"
TOKEN_BYTES = 16


@dataclass(frozen=True)
class KeepSamples:
    """Which iterates to keep, and where.

    Args:
        burn_in: steps to drop; half of them by default.
        thin: keep every so many of the rest; by default as many as there is room for.
        max_samples: room, as a number of samples.
        max_bytes: room in memory; not asked for with `path`.
        dtype: "float32", "bfloat16" or "float16" (half the room); the weights' own by default.
        path: a new folder for the samples of one run, which are then mapped from disk. They are released values, not
            secrets.
    """

    burn_in: int | None = None
    thin: int | None = None
    max_samples: int = 1000
    max_bytes: int = 2**31
    dtype: str | None = None
    path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.burn_in is not None:
            _validate.whole_number("burn_in", self.burn_in, at_least=0)
        if self.thin is not None:
            _validate.whole_number("thin", self.thin)
        _validate.whole_number("max_samples", self.max_samples, at_least=2)
        _validate.whole_number("max_bytes", self.max_bytes)
        if self.dtype is not None:
            _validate.one_of("dtype", self.dtype, DTYPES)

    @contextmanager
    def reserved(self, is_resumed: bool) -> Iterator[None]:
        """While a run lives, keep others out of its folder; refuse one that somebody else has, or had."""
        with nullcontext() if self.path is None else _held(Path(self.path), is_resumed):
            yield

    def open(self, weights: Weights, steps: int) -> "SampleStore":
        """An empty store for samples of such weights; raises if there is no room for two. Nothing is on disk yet."""
        dtypes = {name: DTYPES[self.dtype] if self.dtype else values.dtype for name, values in weights.items()}
        each = sum(values.numel() * dtypes[name].itemsize for name, values in weights.items())
        room = self.max_samples if self.path else min(self.max_samples, self.max_bytes // each)
        window = Window.over(steps, self.burn_in, self.thin, room)
        shapes = {name: (window.count, *values.shape) for name, values in weights.items()}
        if self.path is not None:
            return MappedStore(window, _Files(Path(self.path), shapes, dtypes))
        return SampleStore(
            window,
            {
                name: torch.empty(shapes[name], dtype=dtypes[name], device=values.device)
                for name, values in weights.items()
            },
        )


class SampleStore:
    """Room for all samples of a run; `count` of them are there."""

    def __init__(self, window: Window, samples: Weights) -> None:
        self.window, self.samples = window, samples
        self.importance = torch.zeros(window.count, dtype=torch.float64)
        self.count = 0
        device = next((values.device for values in samples.values()), None)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)

    def is_kept(self, step: int) -> bool:
        """Whether the window holds the step."""
        return self.window.holds(step)

    def expect(self, step: int) -> None:
        """Point to the next free place."""
        if self.is_kept(step):
            self._place.fill_(self.count)

    def write(self, step: int, weights: Weights) -> None:
        """Copy the iterate to where `expect` has pointed: a place that the device looks up."""
        if self.is_kept(step):
            for name, values in weights.items():
                self.samples[name].index_copy_(0, self._place, values[None].to(self.samples[name].dtype))

    def enter(self, step: int, weights: Weights, importance: float) -> None:
        """Count the iterate."""
        if self.is_kept(step):
            self.importance[self.count] = importance
            self.count += 1

    def posterior(self, current: Weights) -> WeightSamples:
        """The samples so far; before the first one, the current weights."""
        if self.count == 0:
            return WeightSamples({name: values[None].clone() for name, values in current.items()}, torch.ones(1))
        kept = {name: values[: self.count] for name, values in self.samples.items()}
        return WeightSamples(kept, self.importance[: self.count])

    def state_dict(self) -> dict[str, Any]:
        """The samples."""
        samples = {name: values[: self.count].clone() for name, values in self.samples.items()}
        return {"count": self.count, "importance": self.importance.clone(), "samples": samples}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go back to what was saved; what was kept since is written over."""
        self.count = saved["count"]
        self.importance.copy_(saved["importance"])
        for name, values in saved["samples"].items():
            self.samples[name][: self.count].copy_(values)


class MappedStore(SampleStore):
    """Samples in a folder that is the run's own: with the first of them, or the first checkpoint, it is written there.

    A token says whose it is. It is drawn for each run and comes back from its checkpoint, so that no other run, and
    none with another guarantee, writes where this one reads.
    """

    def __init__(self, window: Window, files: "_Files") -> None:
        super().__init__(window, {})
        self.files = files
        self.token: object = secrets.token_hex(TOKEN_BYTES)
        self._digest = hashlib.blake2b()

    def expect(self, step: int) -> None:
        """There is no place to point to."""

    def write(self, step: int, weights: Weights) -> None:
        """A device cannot do it alone: `enter` does."""

    def enter(self, step: int, weights: Weights, importance: float) -> None:
        """Copy the iterate to disk, and count it."""
        if self.is_kept(step):
            for name, values in self._mapped().items():
                values[self.count].copy_(weights[name])
            self._add_to_digest(self.count)
        super().enter(step, weights, importance)

    def state_dict(self) -> dict[str, Any]:
        """What is not on disk already; from now on a checkpoint may go on with the folder, and nobody else."""
        self._mapped()
        kept = {"count": self.count, "importance": self.importance.clone(), "samples": {}}
        return kept | {"token": self.token, "digest": self._digest.copy().digest()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go back to what was saved, if it is all there."""
        super().load_state_dict(saved)
        self.token = saved.get("token")
        if self.files.are_of(self.token):
            self._mapped()
            for index in range(self.count):
                self._add_to_digest(index)
        if not self.samples or self._digest.digest() != saved["digest"]:
            raise DpbnnError(
                f"The samples in {self.files.path} are not those of the interrupted run, and its guarantee would "
                "not cover them; delete its checkpoint and start again. What it has released stays spent."
            )

    def _mapped(self) -> Weights:
        if not self.samples:
            self.samples = self.files.mapped(self.token)
        return self.samples

    def _add_to_digest(self, index: int) -> None:
        for values in self.samples.values():
            self._digest.update(values[index].contiguous().view(-1).view(torch.uint8).numpy().data)


class _Files:
    """The files of a folder, and a layout that says whose they are: of one run, ever."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]) -> None:
        self.path, self._shapes, self._dtypes = path, shapes, dtypes

    def are_of(self, token: object) -> bool:
        """Whether the run with this token has made them."""
        try:
            return bool(json.loads((self.path / LAYOUT).read_text()) == self._layout(token))
        except (OSError, ValueError):
            return False

    def mapped(self, token: object) -> Weights:
        """Room for the samples of this run; made where there is none yet, of its own or anybody's."""
        if not self.are_of(token):
            _refuse_used(self.path)
            with _explained(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                with (self.path / LAYOUT).open("x") as file:  # of two at once, one is refused
                    json.dump(self._layout(token), file)
        return {
            name: torch.from_file(
                str(self.path / f"{position}.bin"), shared=True, size=math.prod(shape), dtype=self._dtypes[name]
            ).view(shape)
            for position, (name, shape) in enumerate(self._shapes.items())
        }

    def _layout(self, token: object) -> dict[str, object]:
        return {"run": token, "samples": {name: [*own, str(self._dtypes[name])] for name, own in self._shapes.items()}}


@contextmanager
def _held(path: Path, is_resumed: bool) -> Iterator[None]:
    """Lock a folder. The lock is gone afterwards, and the folder too, if nothing was put into it."""
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


def _is_used(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(file.name != LOCK for file in path.iterdir()))


def _refuse_used(path: Path) -> None:
    if _is_used(path):
        raise DpbnnError(f"path {path} exists and is not this run's; choose another.")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise DpbnnError(f"path {path} exists and is not this run's; choose another.") from error
    except OSError as error:
        raise DpbnnError(f"path {path} must be a folder that can be made: {error.strerror}; choose another.") from error
