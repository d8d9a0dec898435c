"""What an experiment is made of.

An item names its jobs, makes results of what they found, and of the results alone a picture and a section of the page.
Pictures and text can so be made again from the results, and a job that several items ask for is done once.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FULL", "QUICK", "Found", "Item", "Job", "Results", "Size", "mark_of"]

Found = Mapping[str, Any]
"""What one job found; JSON."""
Results = dict[str, Any]
"""Of one item; JSON, and all that its picture and its section are made of."""


@dataclass(frozen=True)
class Size:
    """How much is done: all of it, as in the paper, or little enough for two CPU cores."""

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
        """Whether figures may be compared with the paper's."""
        return self.name == "full"

    @property
    def network_of_grids(self) -> str:
        """Trained so often that it must be quick."""
        return "cnn" if self.is_full else "mlp"


FULL = Size("full", 5, 20, 60_000, 10_000, 15, (1200, 1200), 100, 5)
QUICK = Size("quick", 2, 3, 6_000, 500, 3, (100, 100), 10, 2)


class Job(Protocol):
    """One piece of work that is done or not: mostly a training run with one seed."""

    @property
    def key(self) -> str:
        """Says what it is, and tells it from all others."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """What the outcome depends on, as JSON: with others it is another job."""
        ...

    @property
    def together(self) -> Hashable:
        """Jobs of one kind that agree in this are handed over at once."""
        ...

    @property
    def on_host(self) -> bool:
        """Whether it leaves a GPU alone."""
        ...

    @classmethod
    def run_all(cls, jobs: Sequence[Self], device: str) -> Iterator[Found]:
        """What each of these jobs found, in their order."""
        ...


def mark_of(settings: Mapping[str, Any]) -> str:
    """Tells settings apart in a key."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:6]


@dataclass(frozen=True)
class Item:
    """One table, figure or theorem of the paper, or one beyond it.

    Args:
        name: what it is called by.
        title: the heading of its section.
        jobs: what has to be done.
        results: what comes out, from what the jobs found, by their keys.
        section: the text under the heading, without the picture.
        picture: of the results.
    """

    name: str
    title: str
    jobs: Callable[[Size], Sequence[Job]]
    results: Callable[[Size, Mapping[str, Found]], Results]
    section: Callable[[Results], str]
    picture: "Callable[[Results], Figure]"
