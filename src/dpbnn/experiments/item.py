"""What an experiment is made of.

An item's template is JSON in which a `Later` stands for each part that needs jobs to be done first; filled with their
outcomes it is the item's results. Its picture and its section of the page are made of the results alone, and so can be
made again from files. A job that several items name is done once.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FULL", "QUICK", "Item", "Job", "Later", "Outcome", "Results", "Size", "each", "first", "short_hash"]

Outcome = Mapping[str, Any]
"""What one job returns, as JSON."""
Results = dict[str, Any]
"""What an item's picture and section are made of, as JSON."""


@dataclass(frozen=True)
class Size:
    """How much is computed: as much as in the paper, or little enough for two CPU cores."""

    name: str
    seeds: int
    regression_seeds: int
    records: int
    test_records: int
    epochs: float
    hidden: tuple[int, ...]
    draws: int
    grid: int

    @property
    def is_full(self) -> bool:
        """Whether results may be compared with the paper's."""
        return self.name == "full"

    def thinned(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values of a grid that this size tries, evenly spaced."""
        return values[:: max(1, (len(values) - 1) // max(1, self.grid - 1))]


FULL = Size("full", 5, 20, 60_000, 10_000, 15, (1200, 1200), 100, 5)
QUICK = Size("quick", 2, 3, 6_000, 500, 3, (100, 100), 10, 2)


class Job(ABC):
    """One piece of work that is done or not: mostly a training run with one seed."""

    on_host: ClassVar[bool] = False
    """Whether the job runs on the CPU even where there is a GPU."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The job's name, which no other job has."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the outcome depends on, as JSON: with other settings it is another job."""

    @property
    def group(self) -> Hashable:
        """`run_all` gets jobs of one kind with the same value together; by default each job is alone."""
        return self.key

    @classmethod
    @abstractmethod
    def run_all(cls, jobs: Sequence[Self], device: str) -> Iterator[Outcome]:
        """The outcome of each of these jobs, in their order."""


def short_hash(settings: Mapping[str, Any]) -> str:
    """A short hash of the settings, for keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:6]


@dataclass(frozen=True)
class Later:
    """A part of the results that is computed from the outcomes of its jobs, in their order."""

    jobs: Sequence[Job]
    compute: Callable[[list[Any]], Any]


def each(jobs: Sequence[Job], name: str) -> Later:
    """The value `name` of each outcome."""
    return Later(jobs, lambda outcomes: [outcome[name] for outcome in outcomes])


def first(jobs: Sequence[Job], name: str) -> Later:
    """The value `name` of the first job's outcome."""
    return Later(jobs[:1], lambda outcomes: outcomes[0][name])


@dataclass(frozen=True)
class Item:
    """One table, figure or theorem of the paper, or one beyond it.

    Args:
        name: what it is called by.
        title: the heading of its section.
        template: the results, with a `Later` for each part that needs jobs.
        section: the text under the heading, without the picture, from the results.
        picture: of the results.
    """

    name: str
    title: str
    template: Callable[[Size], Results]
    section: Callable[[Results], str]
    picture: "Callable[[Results], Figure]"

    def jobs(self, size: Size) -> dict[str, Job]:
        """All jobs that the results need, by their keys."""
        jobs: dict[str, Job] = {}
        _filled(self.template(size), lambda later: jobs.update({job.key: job for job in later.jobs}))
        return jobs

    def results(self, size: Size, outcomes: Mapping[str, Outcome]) -> Results:
        """The template, filled with the outcomes of all jobs by their keys."""
        results: Results = _filled(
            self.template(size), lambda later: later.compute([outcomes[job.key] for job in later.jobs])
        )
        return results


def _filled(part: Any, fill: Callable[[Later], Any]) -> Any:
    """A part of a template, with `fill` called for each `Later` in it."""
    if isinstance(part, Later):
        return fill(part)
    if isinstance(part, dict):
        return {name: _filled(inner, fill) for name, inner in part.items()}
    return [_filled(inner, fill) for inner in part] if isinstance(part, list) else part
