"""Keep iterates of the chain themselves, in memory or mapped from disk.

>>> import torch
>>> store = KeepSamples(thin=2).open({"w": torch.zeros(3)}, steps=12)
>>> for step in range(12):
...     store.keep(step, {"w": torch.full((3,), float(step))}, importance=1.0)
>>> [weights["w"][0].item() for weights in store.posterior({}).draw(10, seed=0)]
[7.0, 9.0, 11.0]
"""

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.methods.store.sample_folders import SampleFolder
from dpbnn.methods.store.window import Window, check_window
from dpbnn.posterior import WeightSamples
from dpbnn.types import Weights

__all__ = ["KeepSamples", "SampleStore"]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
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
        check_window(self.burn_in, self.thin)
        _validate.whole_number("max_samples", self.max_samples, at_least=2)
        _validate.whole_number("max_bytes", self.max_bytes)
        if self.dtype is not None:
            _validate.one_of("dtype", self.dtype, DTYPES)

    @property
    def folder(self) -> Path | None:
        """The folder that the run reserves."""
        return None if self.path is None else Path(self.path)

    def open(self, weights: Weights, steps: int) -> "SampleStore":
        """An empty store for samples of such weights; raises if there is no room for two. Nothing is on disk yet."""
        dtypes = {name: DTYPES[self.dtype] if self.dtype else values.dtype for name, values in weights.items()}
        each = sum(values.numel() * dtypes[name].itemsize for name, values in weights.items())
        at_most = self.max_samples if self.path else min(self.max_samples, self.max_bytes // each)
        window = Window.over(steps, self.burn_in, self.thin, at_most)
        shapes = {name: (window.count, *values.shape) for name, values in weights.items()}
        if self.folder is not None:
            return MappedStore(window, SampleFolder(self.folder, shapes, dtypes))
        room = {name: values.new_empty(shapes[name], dtype=dtypes[name]) for name, values in weights.items()}
        return SampleStore(window, room)


class SampleStore:
    """Room for all samples of a run; `count` of them are there."""

    def __init__(self, window: Window, samples: Weights) -> None:
        self.window, self.samples = window, samples
        self.importance = torch.zeros(window.count, dtype=torch.float64)
        self.count = 0

    def keep(self, step: int, weights: Weights, importance: float) -> None:
        """Keep a copy of the iterate after this step, if the window holds the step."""
        if self.window.holds(step):
            for name, values in weights.items():
                self.samples[name][self.count].copy_(values)
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
        """Go back to what was saved; samples that were kept since are written over."""
        self.count = saved["count"]
        self.importance.copy_(saved["importance"])
        for name, values in saved["samples"].items():
            self.samples[name][: self.count].copy_(values)


class MappedStore(SampleStore):
    """Samples in a folder of the run, which is made with the first of them, or with the first checkpoint.

    The token says that the folder is this run's. It comes back from the run's checkpoint alone, so that no other run,
    and none with another guarantee, writes where this one reads.
    """

    def __init__(self, window: Window, folder: SampleFolder) -> None:
        super().__init__(window, {})
        self.folder = folder
        self.token: object = secrets.token_hex(TOKEN_BYTES)
        self._digest = hashlib.blake2b()

    def keep(self, step: int, weights: Weights, importance: float) -> None:
        """Keep a copy on disk, and add it to the digest."""
        if self.window.holds(step):
            self._map()
            super().keep(step, weights, importance)
            self._add_to_digest(self.count - 1)

    def state_dict(self) -> dict[str, Any]:
        """What is not on disk; from now on a run with this checkpoint may go on with the folder, and no other."""
        self._map()
        kept = {"count": self.count, "importance": self.importance.clone(), "samples": {}}
        return kept | {"token": self.token, "digest": self._digest.copy().digest()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go back to what was saved, if all samples are there as they were."""
        super().load_state_dict(saved)
        self.token = saved.get("token")
        if self.folder.is_of(self.token):
            self._map()
            for index in range(self.count):
                self._add_to_digest(index)
        if not self.samples or self._digest.digest() != saved["digest"]:
            raise DpbnnError(
                f"The samples in {self.folder.path} are not those of the interrupted run, and its guarantee would "
                "not cover them; delete its checkpoint and start again. What it has released stays spent."
            )

    def _map(self) -> None:
        if not self.samples:
            self.samples = self.folder.mapped(self.token)

    def _add_to_digest(self, index: int) -> None:
        for values in self.samples.values():
            self._digest.update(values[index].contiguous().view(-1).view(torch.uint8).numpy().data)
