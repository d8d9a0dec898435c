"""What training, keeping and predicting cost: seconds, and bytes. Each run has the machine to itself."""

import tempfile
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

import dpbnn
from dpbnn.experiments.item import Found, Size, mark_of
from dpbnn.experiments.settings import NETWORKS, Setting
from dpbnn.experiments.training import fitted, images

__all__ = ["Cost"]


@dataclass(frozen=True)
class Cost:
    """One setting, trained twice; the second time is the figure, as the first holds all set-up. A job."""

    setting: Setting
    size: Size
    on_host: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """For example "cost, MLP, SGLD, 1f0a93"."""
        own = self.setting
        return f"cost, {NETWORKS[own.network]}, {type(own.method).__name__}, {mark_of(self.settings)}"

    @property
    def settings(self) -> dict[str, Any]:
        """The setting, and how much is predicted."""
        measured = {"test_records": self.size.test_records, "draws": self.size.draws}
        return {"setting": self.setting.to_json()} | measured

    @property
    def together(self) -> Hashable:
        """Alone."""
        return self.key

    @classmethod
    def run_all(cls, jobs: "Sequence[Cost]", device: str) -> Iterator[Found]:
        """One after another."""
        for job in jobs:
            own = images(job.setting.data, job.size, device)
            fitted(job.setting, 0, own, device)
            watch = _Stopwatch(device)
            release = fitted(job.setting, 0, own, device)
            seconds, peak = watch.read()
            release.predict(own.x_test, num_draws=job.size.draws, seed=0)
            watch = _Stopwatch(device)
            release.predict(own.x_test, num_draws=job.size.draws, seed=0)
            predicting, _ = watch.read()
            yield {
                "seconds_per_epoch": round(seconds / job.setting.epochs, 4),
                "prediction_seconds": round(predicting, 4),
                "training_bytes": peak,
                "release_bytes": _size_of(release),
                "weights": sum(p.numel() for p in release.model.parameters()),
            }


class _Stopwatch:
    """Seconds since it was made, and on a GPU the most bytes that were taken since then."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        self._start = time.perf_counter()

    def read(self) -> tuple[float, int | None]:
        """Both; bytes are None on a CPU."""
        if self._on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._start
        return seconds, torch.cuda.max_memory_allocated() - self._before if self._on_gpu else None


def _size_of(release: dpbnn.Release) -> int:
    """Of the folder that it is saved to."""
    with tempfile.TemporaryDirectory() as folder:
        release.save(Path(folder) / "release")
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
