"""Releases without a delta, such as bounds of columns: each is promised beforehand, paid for at once, and made once.

A mechanism needs a `Permit`, and `Purchases.buy` alone gives permits out:

    >>> from dpbnn.privacy.queries.selection import noisy_maximum
    >>> purchases = Purchases({"the better one": 5.0})
    >>> purchases.buy("the better one", lambda permit: noisy_maximum([3.0, 90.0], permit))
    1
    >>> purchases.buy("the better one", lambda permit: noisy_maximum([90.0, 3.0], permit))  # bought: nothing is drawn
    1

A `PurchaseFile` keeps what was bought, so that a run that continues after an interruption does not buy it again.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import PRIVATE_FOLDER, replace_file
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["Bought", "Entry", "LedgerError", "Permit", "PurchaseFile", "Purchases", "added_up"]

FILE_VERSION = 1


class LedgerError(RuntimeError):
    """What was released is not what was charged."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; this is a bug, and nothing of this run must be used.")


@dataclass(frozen=True)
class Entry:
    """A line of a ledger: the mechanism ran `count` times, on data with at most `rows_per_person` rows of each person.

    `level` is the noise multiplier of noisy sums; of other mechanisms it is epsilon for one record.
    """

    purpose: str
    mechanism: str
    level: float
    count: int
    rows_per_person: int


def added_up(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The same lines, those that differ in their count alone added up."""
    counts: Counter[Entry] = Counter()
    for entry in entries:
        counts[replace(entry, count=1)] += entry.count
    return tuple(replace(line, count=count) for line, count in counts.items())


@dataclass(frozen=True)
class Bought:
    """The value that was bought, and the mechanism that drew it."""

    mechanism: str
    value: float


@dataclass(frozen=True, eq=False)
class Permit:
    """The right to run one mechanism, once, at `epsilon` for one record that is added or removed.

    Guarantees:
        A permit can be used once.
        A permit that no ledger has given out is refused.
        A permit is worth nothing after its purchase.
    """

    purpose: str
    epsilon: float
    rows_per_person: int
    redeem: Callable[["Permit", str], float]

    def spend(self, mechanism: str) -> float:
        """The epsilon to run with. Every mechanism calls this before it looks at a value."""
        return self.redeem(self, mechanism)


class PurchaseFile:
    """A file, as secret as the data, with what a run has bought.

    Guarantees:
        The file is whole, on disk and for its owner alone before a value is used.
        A file of another plan or of other purchases is refused.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._about: dict[str, Any] = {}

    def open(self, plan: PrivacyPlan, promised: Mapping[str, float]) -> dict[str, Bought]:
        """What was bought before an interruption."""
        self._about = {
            "version": FILE_VERSION,
            "plan": json.loads(plan.to_json()),
            "promised": list(map(list, promised.items())),
        }
        if not self.path.exists():
            return {}
        try:
            known = json.loads(self.path.read_text())
            bought = {purpose: Bought(**values) for purpose, values in known.pop("bought").items()}
        except OSError as error:
            raise DpbnnError(
                f"{self.path} cannot be read: {error.strerror}. Mend that, and run again: the run continues."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DpbnnError(
                f"{self.path} is damaged; delete the unfinished run (what it has released stays spent)."
            ) from error
        if known != self._about or not bought.keys() <= promised.keys():
            raise DpbnnError(
                f"{self.path} belongs to another run: the plan, or what is bought, changed. Run again with what it was "
                "made with, or delete it; what that run has released stays spent."
            )
        return bought

    def write(self, bought: Mapping[str, Bought]) -> None:
        """Replace the file; the old one stays whole until the new one is."""
        self.path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        values = self._about | {"bought": {purpose: asdict(value) for purpose, value in bought.items()}}
        text = json.dumps(values, allow_nan=False).encode()
        replace_file(self.path, "purchases", lambda file: file.write(text))


class Purchases:
    """Purposes with their epsilons for one record, and what was bought for them.

    Guarantees:
        What is not promised cannot be bought.
        What was bought is not drawn again.
        A value that was drawn without its permit is refused.
        What was drawn and lost is not drawn again.
    """

    def __init__(
        self,
        promised: Mapping[str, float],
        rows_per_person: int = 1,
        bought: Mapping[str, Bought] | None = None,
        file: PurchaseFile | None = None,
    ) -> None:
        self.promised = dict(promised)
        self.rows_per_person = rows_per_person
        self._bought = dict(bought or {})
        self._file = file
        self._mechanism_of: dict[str, str] = {}
        self._outstanding: set[Permit] = set()
        self._is_closed = False

    def buy(self, purpose: str, draw: Callable[[Permit], float]) -> float:
        """The value that `draw` makes with a permit for this purpose, or made before."""
        if purpose in self._bought:
            return self._bought[purpose].value
        if self._is_closed or purpose not in self.promised:
            raise LedgerError(f"{purpose!r} was to be bought and was not promised, or after the ledger was closed")
        if purpose in self._mechanism_of:
            raise LedgerError(f"{purpose!r} is bought again, after it was drawn and lost")
        permit = Permit(purpose, self.promised[purpose], self.rows_per_person, self._redeem)
        self._outstanding.add(permit)
        try:
            value = draw(permit)
        finally:
            self._outstanding.discard(permit)
        if purpose not in self._mechanism_of:
            raise LedgerError(f"{purpose!r} was returned by a mechanism that did not spend its permit")
        bought = self._bought | {purpose: Bought(self._mechanism_of[purpose], value)}
        if self._file is not None:
            self._file.write(bought)  # a value that cannot be written is lost, and never used
        self._bought = bought
        return value

    def _redeem(self, permit: Permit, mechanism: str) -> float:
        """Take a permit back as its mechanism begins; epsilon is the promised one, whatever the permit says."""
        if permit not in self._outstanding:
            raise LedgerError(f"a permit for {permit.purpose!r} is used that was used before, or is not of its ledger")
        self._outstanding.remove(permit)
        self._mechanism_of[permit.purpose] = mechanism
        return self.promised[permit.purpose]

    def missing(self) -> list[str]:
        """The purposes that nothing has been bought for."""
        return [purpose for purpose in self.promised if purpose not in self._bought]

    def close(self) -> None:
        """End all buying."""
        self._is_closed = True

    @property
    def entries(self) -> tuple[Entry, ...]:
        """A line for each purchase."""
        return tuple(
            Entry(purpose, bought.mechanism, self.promised[purpose], 1, self.rows_per_person)
            for purpose, bought in self._bought.items()
        )
