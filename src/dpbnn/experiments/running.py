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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpbnn.experiments.item import Job, Outcome

__all__ = ["Done", "JobStore", "run_jobs", "write"]

AT_ONCE = 10
"""The most jobs that are handed over at a time."""


@dataclass(frozen=True)
class Done:
    """The outcome of a job, and about it machine, day and seconds; the first job of a batch bears what all share."""

    outcome: Outcome
    about: Mapping[str, Any]


@dataclass(frozen=True)
class JobStore:
    """A folder with a file for each job that is done."""

    folder: Path

    def done(self, job: Job) -> Done | None:
        """The outcome of the job, if it is done."""
        file = self._file(job)
        if not file.is_file():
            return None
        kept = json.loads(file.read_text())
        return Done(kept["found"], kept["about"])

    def keep(self, job: Job, done: Done) -> None:
        """Write the outcome of the job to its file."""
        text = json.dumps({"key": job.key, "settings": job.settings, "found": done.outcome, "about": done.about})
        write(self._file(job), text.encode())

    def _file(self, job: Job) -> Path:
        """The job's file, named by a hash of all that the outcome depends on."""
        mark = hashlib.sha256(json.dumps([job.key, job.settings], sort_keys=True).encode()).hexdigest()[:20]
        return self.folder / f"{mark}.json"


def run_jobs(
    jobs: Iterable[Job], store: JobStore, device: str, minutes: float | None, show: bool
) -> Mapping[str, Done]:
    """The outcomes of all jobs, by their keys; jobs that are not done are done now, until the time is up."""
    every = list({job.key: job for job in jobs}.values())
    done = {job.key: kept for job in every if (kept := store.done(job)) is not None}
    left = [job for job in every if job.key not in done]
    end = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    columns = MofNCompleteColumn(), BarColumn(20), TimeRemainingColumn(), TextColumn("{task.description}")
    console = Console(stderr=True)
    hidden = not (show and left and console.is_terminal)
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=len(every), completed=len(done))
        for some in _batches(left):
            if time.monotonic() > end:
                break
            bar.update(task, description=some[0].key)
            start = time.monotonic()
            for job, result in zip(some, type(some[0]).run_all(some, device), strict=True):
                start, seconds = time.monotonic(), round(time.monotonic() - start, 3)
                about = _machine("cpu" if job.on_host else device) | {"seconds": seconds}
                done[job.key] = Done(json.loads(json.dumps(result)), about)
                store.keep(job, done[job.key])
                bar.advance(task)
    return done


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version(), "date": f"{date.today()}"}


def _batches(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Batches of jobs of one kind that can run together, in the order of their first jobs."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        groups.setdefault((type(job), job.together), []).append(job)
    for group in groups.values():
        for start in range(0, len(group), AT_ONCE):
            yield group[start : start + AT_ONCE]


def write(file: Path, contents: bytes) -> None:
    """Write the file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_bytes(contents)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
