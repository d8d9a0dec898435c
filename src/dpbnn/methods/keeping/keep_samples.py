"""Keep iterates of the chain themselves, in memory or mapped from disk.

>>> import torch
>>> store = KeepSamples(thin=2).open({"w": torch.zeros(3)}, steps=12, run=0)
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
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpbnn import _validate
from dpbnn.methods.keeping.window import Window
from dpbnn.posterior import WeightSamples
from dpbnn.types import DpbnnError, Weights

__all__ = ["KeepSamples", "SampleStore"]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUT, UNFINISHED = "layout.json", "unfinished"


@dataclass(frozen=True)
class KeepSamples:
    """Which iterates to keep, and where.

    Args:
        burn_in: steps to drop; half of them by default.
        thin: keep every so many of the rest; by default as many as there is room for.
        max_samples: room, as a number of samples.
        max_bytes: room in memory; not asked for with `path`.
        dtype: "float32", "bfloat16" or "float16" (half the room); the weights' own by default.
        path: a folder for the samples, which are then mapped from disk. They are released values, not secrets.
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

    def open(self, weights: Weights, steps: int, run: int) -> "SampleStore":
        """An empty store for samples of such weights; raises if there is no room for two. `run` tells runs apart."""
        dtypes = {name: DTYPES[self.dtype] if self.dtype else values.dtype for name, values in weights.items()}
        each = sum(values.numel() * dtypes[name].itemsize for name, values in weights.items())
        room = self.max_samples if self.path else min(self.max_samples, self.max_bytes // each)
        window = Window.over(steps, self.burn_in, self.thin, room)
        if self.path is None:
            samples = {
                name: torch.empty(window.count, *values.shape, dtype=dtypes[name], device=values.device)
                for name, values in weights.items()
            }
            return SampleStore(window, samples)
        folder = _Folder(Path(self.path), run)
        return SampleStore(window, folder.mapped(weights, dtypes, window.count), folder)


class SampleStore:
    """Room for all samples of a run; `count` of them are there."""

    def __init__(self, window: Window, samples: Weights, folder: "_Folder | None" = None) -> None:
        self.window, self.samples, self.folder = window, samples, folder
        self.importance = torch.zeros(window.count, dtype=torch.float64)
        self.count = 0
        self._place = torch.zeros(1, dtype=torch.int64, device=next(iter(samples.values())).device)
        self._digest = hashlib.blake2b()

    def is_kept(self, step: int) -> bool:
        """Whether the window holds the step."""
        return self.window.holds(step)

    def expect(self, step: int) -> None:
        """Point to the next free place."""
        if self.folder is not None:
            self.folder.refuse_finished()
        elif self.is_kept(step):
            self._place.fill_(self.count)

    def write(self, step: int, weights: Weights) -> None:
        """In memory, copy the iterate to where `expect` has pointed: a place that the device looks up."""
        if self.folder is None and self.is_kept(step):
            for name, values in weights.items():
                self.samples[name].index_copy_(0, self._place, values[None].to(self.samples[name].dtype))

    def enter(self, step: int, weights: Weights, importance: float) -> None:
        """Count the iterate; copy it to disk, if it belongs there."""
        if not self.is_kept(step):
            return
        if self.folder is not None:
            for name, values in weights.items():
                self.samples[name][self.count].copy_(values)
            self._add_to_digest(self.count)
        self.importance[self.count] = importance
        self.count += 1
        if self.folder is not None and step == self.window.steps - 1:
            self.folder.finish()

    def posterior(self, current: Weights) -> WeightSamples:
        """The samples so far; before the first one, the current weights."""
        if self.count == 0:
            return WeightSamples({name: values[None].clone() for name, values in current.items()}, torch.ones(1))
        kept = {name: values[: self.count] for name, values in self.samples.items()}
        return WeightSamples(kept, self.importance[: self.count])

    def to_save(self) -> dict[str, Any]:
        """What is not on disk already."""
        samples = {} if self.folder else {name: values[: self.count].clone() for name, values in self.samples.items()}
        digest = self._digest.copy().digest()
        return {"count": self.count, "importance": self.importance.clone(), "samples": samples, "digest": digest}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go back to what was saved; what was kept since is written over."""
        self.count = saved["count"]
        self.importance.copy_(saved["importance"])
        for name, values in saved["samples"].items():
            self.samples[name][: self.count].copy_(values)
        if self.folder is not None:
            self.folder.resumed = True
            for index in range(self.count):
                self._add_to_digest(index)
            if self._digest.digest() != saved["digest"]:
                raise DpbnnError(
                    f"The samples in {self.folder.path} are not those of the interrupted run, and its guarantee would "
                    "not cover them; delete its checkpoint and start again. What it has released stays spent."
                )

    def _add_to_digest(self, index: int) -> None:
        for values in self.samples.values():
            self._digest.update(values[index].contiguous().view(-1).view(torch.uint8).numpy().data)


class _Folder:
    """A folder of samples, which belongs to one run: that which it was made for, also after an interruption."""

    def __init__(self, path: Path, run: int) -> None:
        self.path, self.run = path, run
        self.resumed = False

    def mapped(self, weights: Weights, dtypes: Mapping[str, torch.dtype], count: int) -> Weights:
        """Files for the samples: new ones, or those of the same run."""
        shapes = {name: [count, *values.shape, str(dtypes[name])] for name, values in weights.items()}
        layout = {"run": hashlib.blake2b(str(self.run).encode(), digest_size=16).hexdigest(), "samples": shapes}
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            if self._layout() != layout:
                raise DpbnnError(f"path {self.path} exists and is not this run's; choose another.")
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / UNFINISHED).touch()
            (self.path / LAYOUT).write_text(json.dumps(layout))
        files = {name: str(self.path / f"{position}.bin") for position, name in enumerate(weights)}
        return {
            name: torch.from_file(files[name], shared=True, size=count * values.numel(), dtype=dtypes[name]).view(
                count, *values.shape
            )
            for name, values in weights.items()
        }

    def _layout(self) -> object:
        try:
            return json.loads((self.path / LAYOUT).read_text())
        except (OSError, ValueError):
            return None

    def refuse_finished(self) -> None:
        """A new run with an old one's seed must not write over that one's samples."""
        if not self.resumed and not (self.path / UNFINISHED).exists():
            raise DpbnnError(f"path {self.path} holds the samples of a finished run; choose another.")

    def finish(self) -> None:
        """All samples are there."""
        (self.path / UNFINISHED).unlink(missing_ok=True)
        self.resumed = True
