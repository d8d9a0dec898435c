"""Jobs are done once: their outcomes are kept in files, and an interrupted run goes on where it stopped.

Guarantees:
    A job that is done is not done again, unless its settings have changed.
    Whatever interrupts, every file holds all of what it says.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpbnn.experiments.item import Job

__all__ = ["run_jobs", "write"]

LARGEST_BATCH = 10
"""The most jobs in one call of `run_all`."""


def run_jobs(
    jobs: Mapping[str, Job], folder: Path, device: str, minutes: float | None, show: bool
) -> dict[str, dict[str, Any]]:
    """Do the jobs that have no file in the folder, until the time is up; return what the file of each done job holds.

    A file has the outcome as "found", and as "about" machine, day and seconds. The first job of a batch bears what all
    share.
    """
    done = {key: json.loads(file.read_text()) for key, job in jobs.items() if (file := _file(folder, job)).is_file()}
    left = [job for key, job in jobs.items() if key not in done]
    end = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    columns = MofNCompleteColumn(), BarColumn(20), TimeRemainingColumn(), TextColumn("{task.description}")
    console = Console(stderr=True)
    hidden = not (show and left and console.is_terminal)
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=len(jobs), completed=len(done))
        for batch in _batches(left):
            if time.monotonic() > end:
                break
            bar.update(task, description=batch[0].key)
            start = time.monotonic()
            for job, outcome in zip(batch, type(batch[0]).run_all(batch, device), strict=True):
                start, seconds = time.monotonic(), round(time.monotonic() - start, 3)
                about = _machine("cpu" if job.on_host else device) | {"seconds": seconds}
                text = json.dumps({"key": job.key, "settings": job.settings, "found": outcome, "about": about})
                write(_file(folder, job), text.encode())
                done[job.key] = json.loads(text)
                bar.advance(task)
    return done


def _file(folder: Path, job: Job) -> Path:
    """The job's file, named by a hash of all that the outcome depends on."""
    mark = hashlib.sha256(json.dumps([job.key, job.settings], sort_keys=True).encode()).hexdigest()[:20]
    return folder / f"{mark}.json"


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version(), "date": f"{date.today()}"}


def _batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Batches of jobs of one kind that can run together, in the order of their first jobs."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        groups.setdefault((type(job), job.group), []).append(job)
    for group in groups.values():
        for start in range(0, len(group), LARGEST_BATCH):
            yield group[start : start + LARGEST_BATCH]


def write(file: Path, contents: bytes) -> None:
    """Write the file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_bytes(contents)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
