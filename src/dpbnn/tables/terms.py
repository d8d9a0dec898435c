"""The terms of one fit, the same for tables and estimators: what it buys, chooses, pays and promises.

They follow from public numbers alone, before any record is looked at.

    >>> facts = Facts(rows=32_561, columns=14, classes=2, epsilon=1.0, delta=1e-5)
    >>> terms = terms_for(facts, {"clip_norm": 2.0}, ["column 'age'"])
    >>> list(terms.chosen.purchases)
    ["lower quartile of column 'age'", "upper quartile of column 'age'"]
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbnn.files.claim import Claim, locked
from dpbnn.privacy.guarantee import Circumstances
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.purchases import PurchaseFile
from dpbnn.privacy.queries.bounds import BoundsPurchase, bounds_purchase
from dpbnn.tables.settings import Chosen, Facts, choose

__all__ = [
    "LEDGER",
    "RELEASE",
    "TRAINING",
    "FitFolder",
    "Terms",
    "circumstances",
    "claimed",
    "is_begun",
    "terms_for",
]

LEDGER, TRAINING, RELEASE = "ledger.json", "training", "release"
"""What an unfinished fit keeps in its folder."""


@dataclass(frozen=True)
class Terms:
    """Public facts, settings with the plan that pays for everything, and how bounds are bought."""

    facts: Facts
    chosen: Chosen
    bounds: BoundsPurchase | None = None

    def ledger(self, file: PurchaseFile | None = None) -> Ledger:
        """A ledger for all that these terms charge; `file` keeps what was bought through interruptions."""
        return Ledger.open(self.chosen.plan, self.chosen.purchases, file=file)


def terms_for(
    facts: Facts,
    given: Mapping[str, Any] | None = None,
    unbounded: Sequence[str] = (),
    *,
    buys_target: bool = False,
    bounds_share: float = 0.5,
    remedy: str = "bounds=(0, 100), or such a pair for each column",
) -> Terms:
    """Terms for these facts.

    Args:
        facts: rows, columns and budget.
        given: settings that are not to be chosen, by name.
        unbounded: columns whose bounds are bought, the target last.
        buys_target: whether the target is one of them.
        bounds_share: what bought bounds would cost by themselves, as a share of epsilon.
        remedy: how public bounds are given instead.
    """
    if not unbounded:
        return Terms(facts, choose(facts, given))
    epsilon = bounds_share * facts.epsilon / facts.max_records_per_person
    bounds = bounds_purchase(unbounded, facts.rows, epsilon, facts.delta, buys_target, remedy)
    return Terms(facts, choose(facts, given, bounds.purchases), bounds)


def circumstances(assumptions: Sequence[str], counted: str | None) -> Circumstances:
    """Where rows were `counted`, their number is public, and neighbours are blanked out rather than removed."""
    if counted is None:
        return Circumstances(assumptions=tuple(assumptions))
    return Circumstances("zero_out", (*assumptions, counted))


@dataclass(frozen=True)
class FitFolder:
    """Where a fit keeps what it has bought and trained, as secret as the data; or nowhere, without a path."""

    path: Path | None = None
    claim: Claim | None = None
    take_over: bool = False

    @property
    def ledger(self) -> PurchaseFile | None:
        """The file of what was bought."""
        return None if self.path is None else PurchaseFile(self.path / LEDGER)

    @property
    def training(self) -> Path | None:
        """The folder of training's checkpoint."""
        return None if self.path is None else self.path / TRAINING

    def check(self) -> None:
        """Stop a worker whose fit was taken over by another host: nobody uses what it has bought since then."""
        if self.claim is not None:
            self.claim.check()

    def remove(self) -> None:
        """Delete the folder."""
        if self.claim is not None:
            self.claim.remove_folder()


@contextmanager
def claimed(path: Path, take_over: bool) -> Iterator[FitFolder]:
    """The folder of a fit, locked for one worker: two would buy and release twice."""
    with locked(path) as claim:
        claim.take(take_over, is_begun(path))
        yield FitFolder(path, claim, take_over)


def is_begun(path: Path) -> bool:
    """Whether anything was bought, trained or released in this folder."""
    return any((path / name).exists() for name in (LEDGER, TRAINING, RELEASE))
