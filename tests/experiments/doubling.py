"""A job that costs nothing."""

from dataclasses import dataclass
from typing import ClassVar

from dpbnn.experiments.item import Job


@dataclass(frozen=True)
class Doubling(Job):
    """Finds twice its number."""

    number: int
    version: int = 1
    done: ClassVar[list[int]] = []
    batches: ClassVar[list[int]] = []
    fails_at: ClassVar[set[int]] = set()
    on_host: ClassVar[bool] = True

    @property
    def key(self):
        return f"twice {self.number}"

    @property
    def settings(self):
        return {"version": self.version}

    @property
    def group(self):
        return self.number % 2

    @classmethod
    def run_all(cls, jobs, device):
        cls.batches.append(len(jobs))
        for job in jobs:
            if job.number in cls.fails_at:
                raise KeyboardInterrupt
            cls.done.append(job.number)
            yield {"twice": 2 * job.number}
