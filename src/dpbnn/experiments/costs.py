"""What training, keeping and predicting cost: seconds, and bytes. Each run has the machine to itself."""

import tempfile
import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import torch

import dpbnn
from dpbnn.experiments.item import Outcome, Size
from dpbnn.experiments.settings import NETWORKS
from dpbnn.experiments.training import ImageRun

__all__ = ["Cost", "networks_of"]


def networks_of(size: Size) -> list[str]:
    """Both, or the one that two CPU cores are quick with."""
    return list(NETWORKS) if size.is_full else ["mlp"]


class Cost(ImageRun):
    """A run that is done twice; the second time is the figure, as the first holds all set-up. A job."""

    purpose = "cost"

    @property
    def together(self) -> Hashable:
        """Alone."""
        return self.key

    @classmethod
    def run_all(cls, jobs: "Sequence[Cost]", device: str) -> Iterator[Outcome]:
        """One after another."""
        for job in jobs:
            data = job.images(device)
            job.fit(data, device)
            watch = _Stopwatch(device)
            release = job.fit(data, device)
            seconds, peak = watch.read()
            release.predict(data.x_test, num_draws=job.size.draws, seed=0)
            watch = _Stopwatch(device)
            release.predict(data.x_test, num_draws=job.size.draws, seed=0)
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
        """Seconds and bytes, which are None on a CPU."""
        if self._on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._start
        return seconds, torch.cuda.max_memory_allocated() - self._before if self._on_gpu else None


def _size_of(release: dpbnn.Release) -> int:
    """Of the folder that it is saved to."""
    with tempfile.TemporaryDirectory() as folder:
        release.save(Path(folder) / "release")
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
