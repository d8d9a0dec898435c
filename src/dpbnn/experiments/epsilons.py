"""Epsilon along a run, by every accountant. Many of them take a while, and so they are jobs like any other."""

import os
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import dpbnn
from dpbnn.experiments.item import Job, Outcome, mark_of
from dpbnn.experiments.words import by_accountant

__all__ = ["Epsilons"]


@dataclass(frozen=True)
class Epsilons(Job):
    """Epsilon after each of some numbers of steps; a job."""

    what: str
    noise_multiplier: float
    dataset_size: int
    batch_size: int
    steps: tuple[int, ...]
    delta: float
    on_host: ClassVar[bool] = True

    @property
    def key(self) -> str:
        """For example "epsilon, by epoch, noise 1.3, 1f0a93"."""
        return f"epsilon, {self.what}, noise {self.noise_multiplier:.6g}, {mark_of(self.settings)}"

    @property
    def settings(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    @property
    def together(self) -> Hashable:
        """All of them: cores are there for several."""
        return None

    @classmethod
    def run_all(cls, jobs: "Sequence[Epsilons]", device: str) -> Iterator[Outcome]:
        """Side by side, on the host."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            yield from pool.map(cls._outcome, jobs)

    def _outcome(self) -> Outcome:
        def plan(steps: int) -> dpbnn.PrivacyPlan:
            return dpbnn.PrivacyPlan(self.dataset_size, self.batch_size, steps, 1.0, self.noise_multiplier, self.delta)

        return {"epsilon": [by_accountant(plan(steps)) for steps in self.steps]}
