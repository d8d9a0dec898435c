"""From names to files: what ``dpbnn reproduce`` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dpbnn.errors import DpbnnError
from dpbnn.experiments import ITEMS
from dpbnn.experiments.item import Size
from dpbnn.experiments.page import FOLDER, write_item, write_page
from dpbnn.experiments.running import JobStore, run_jobs

__all__ = ["Outcome", "reproduce"]


@dataclass(frozen=True)
class Outcome:
    """Which items are written, and how many jobs are left of how many."""

    written: tuple[str, ...]
    left: int
    jobs: int


def reproduce(
    names: Sequence[str], size: Size, folder: Path, minutes: float | None = None, show: bool = True
) -> Outcome:
    """Do what is not done yet, and write all items that are complete."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    store = JobStore(folder / FOLDER / ".jobs")
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DpbnnError(f"--out must be a folder that can be written to, got {folder} ({error}).") from error
    wanted = {name: list(ITEMS[name].jobs(size)) for name in names}
    done = run_jobs([job for jobs in wanted.values() for job in jobs], store, device, minutes, show)
    found = {key: own.found for key, own in done.items()}
    complete = [name for name, jobs in wanted.items() if all(job.key in done for job in jobs)]
    for name in complete:
        about = [done[job.key].about for job in wanted[name]]
        write_item(ITEMS[name], ITEMS[name].results(size, found), size, about, folder)
    write_page(folder)
    keys = {job.key for jobs in wanted.values() for job in jobs}
    return Outcome(tuple(complete), len(keys - set(done)), len(keys))
