"""Jobs are done once: what they found is kept in files, and an interrupted run goes on where it stopped.

Guarantees:
    A job that is done is not done again, unless its settings have changed.
    Whatever interrupts, every file holds all of what it says.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpbnn.experiments.item import Found, Job

__all__ = ["Store", "run_jobs", "write"]

AT_ONCE = 10
"""Jobs that are handed over at a time."""


@dataclass(frozen=True)
class Store:
    """A folder with a file for each job that is done."""

    folder: Path

    def found(self, job: Job) -> Found | None:
        """What the job found, if it is done."""
        file = self._file(job)
        if not file.is_file():
            return None
        kept: dict[str, Any] = json.loads(file.read_text())
        found: Found = kept["found"]
        return found

    def keep(self, job: Job, found: Found) -> None:
        """Write down what the job found."""
        text = json.dumps({"key": job.key, "settings": job.settings, "found": found})
        write(self._file(job), text.encode())

    def _file(self, job: Job) -> Path:
        """Named by all that the outcome depends on."""
        mark = hashlib.sha256(json.dumps([job.key, job.settings], sort_keys=True).encode()).hexdigest()[:20]
        return self.folder / f"{mark}.json"


def run_jobs(jobs: Iterable[Job], store: Store, device: str, minutes: float | None, show: bool) -> Mapping[str, Found]:
    """What all jobs found, by their keys; those that are not done are done now, until the time is up."""
    every = list({job.key: job for job in jobs}.values())
    found = {job.key: own for job in every if (own := store.found(job)) is not None}
    left = [job for job in every if job.key not in found]
    end = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    with _progress(show and bool(left)) as bar:
        task = bar.add_task("", total=len(every), completed=len(found))
        for some in _batches(left):
            if time.monotonic() > end:
                break
            bar.update(task, description=some[0].key)
            for job, own in zip(some, type(some[0]).run_all(some, device), strict=True):
                store.keep(job, own)
                found[job.key] = json.loads(json.dumps(own))
                bar.advance(task)
    return found


def _batches(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Jobs of one kind that can be done together, a few at a time, in the order of the first of each."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        groups.setdefault((type(job), job.together), []).append(job)
    for group in groups.values():
        for start in range(0, len(group), AT_ONCE):
            yield group[start : start + AT_ONCE]


def _progress(show: bool) -> Progress:
    columns = MofNCompleteColumn(), BarColumn(20), TimeRemainingColumn(), TextColumn("{task.description}")
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not (show and console.is_terminal), transient=True)


def write(file: Path, contents: bytes) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_bytes(contents)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
