"""Keep iterates of the chain themselves, in memory or mapped from disk.

>>> import torch
>>> store = KeepSamples(thin=2).open({"w": torch.zeros(3)}, steps=12)
>>> for step in range(12):
...     store.offer(step, {"w": torch.full((3,), float(step))}, importance=1.0)
>>> [weights["w"][0].item() for weights in store.posterior({}).draw(10, seed=0)]
[7.0, 9.0, 11.0]
"""

import json
import os
import weakref
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

    def open(self, weights: Weights, steps: int) -> "SampleStore":
        """An empty store for samples of such weights; raises if there is no room for two."""
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
        folder = _Folder(Path(self.path))
        return SampleStore(window, folder.mapped(weights, dtypes, window.count), folder)


class SampleStore:
    """Room for all samples of a run; `count` of them are there."""

    def __init__(self, window: Window, samples: Weights, folder: "_Folder | None" = None) -> None:
        self.window, self.samples, self.folder = window, samples, folder
        self.importance = torch.zeros(window.count, dtype=torch.float64)
        self.count = 0

    def offer(self, step: int, weights: Weights, importance: float) -> None:
        """Keep the iterate after this step, if it is one of those to be kept."""
        if not self.window.holds(step):
            return
        for name, values in weights.items():
            self.samples[name][self.count].copy_(values)
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
        return {"count": self.count, "importance": self.importance.clone(), "samples": samples}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go back to what was saved; what was kept since is written over."""
        self.count = saved["count"]
        self.importance.copy_(saved["importance"])
        for name, values in saved["samples"].items():
            self.samples[name][: self.count].copy_(values)


class _Folder:
    """A folder of samples, which belongs to one run at a time for as long as that run's process lives."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mapped(self, weights: Weights, dtypes: Mapping[str, torch.dtype], count: int) -> Weights:
        """Files for the samples; those of an interrupted run are used again, those of a finished one refused."""
        layout = {name: [count, *values.shape, str(dtypes[name])] for name, values in weights.items()}
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            described = self.path / LAYOUT
            ours = described.is_file() and json.loads(described.read_text()) == layout
            if not (ours and (self.path / UNFINISHED).exists()):
                raise DpbnnError(
                    f"path {self.path} exists and is not from an interrupted run of this kind; choose another."
                )
        self.path.mkdir(parents=True, exist_ok=True)
        self._claim()
        (self.path / LAYOUT).write_text(json.dumps(layout))
        files = {name: str(self.path / f"{position}.bin") for position, name in enumerate(weights)}
        return {
            name: torch.from_file(files[name], shared=True, size=count * values.numel(), dtype=dtypes[name]).view(
                count, *values.shape
            )
            for name, values in weights.items()
        }

    def _claim(self) -> None:
        """Another run's samples must not end up among ours: they are not covered by our guarantee."""
        lock = os.open(self.path / UNFINISHED, os.O_RDWR | os.O_CREAT, 0o644)
        self._let_go = weakref.finalize(self, os.close, lock)
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ModuleNotFoundError:  # no such locks on this system
            pass
        except OSError as error:
            raise DpbnnError(f"path {self.path} is in use by another run; choose another.") from error

    def finish(self) -> None:
        """All samples are there."""
        (self.path / UNFINISHED).unlink(missing_ok=True)
        self._let_go()
