"""The ledger: everything that spends is charged here, within the plan; a step repeated bit for bit is charged once.

Opening a ledger for a plan charges the open `BudgetAccountant`, once; code that is handed the ledger does not charge
again. `Ledger.buy` buys what the plan pays for besides its steps (`pure_epsilons`), by name. A guarantee, and with it a
release, is made from a ledger that `settle` has checked, and from nothing else.

After an interruption some steps are taken again. A step that comes out bit for bit as it did before reveals nothing
new. A step that does not (another machine, another version) must not be used: with the same noise on another sum, the
two together would reveal the difference. The run then goes on with a fresh key, and is charged again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dpbnn.privacy.budget import charge_open_budget, composed_epsilon
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.purchases import Entry, LedgerError, Permit, PurchaseFile, Purchases, added_up
from dpbnn.privacy.queries.selection import check_available

if TYPE_CHECKING:
    from dpbnn.types import NoisySum

__all__ = ["ChargedStep", "Ledger", "SearchCost", "SearchLedger", "Settled", "fingerprint"]

ChargedStep = tuple[int, int | None]
"""A step and its mark, the fingerprint of what it released; None where its noise came from another key."""
CHOICE = "the choice between the candidates"


def fingerprint(noisy: "NoisySum") -> int:
    """A number that tells two releases apart: the sum of b (b + odd) modulo 2^32 over the bits b of their numbers.

    The product scatters the smallest change of any number over all 32 bits, so that changes do not cancel in the sum.
    Only the order of a parameter's numbers does not matter.
    """
    import torch  # plans and their costs do without it

    total = 0
    for position, values in enumerate(noisy.gradients.values(), start=1):
        bits = values.reshape(-1).view(torch.int32)  # 64 bits without a dimension cannot be split
        total += position * int((bits * (bits + 0x3779B97F)).sum(dtype=torch.int64))
    return total % 2**64


@dataclass(frozen=True)
class SearchCost:
    """The cost of a search: fits on some people's records, a choice by other people's. Nobody pays for both."""

    candidates: int
    epsilon: float
    delta: float
    epsilon_of_fits: float
    epsilon_of_choice: float


@dataclass(frozen=True)
class Settled:
    """A ledger that was checked: a guarantee is made from it. `search` is the search that the run is a part of."""

    plan: PrivacyPlan
    entries: tuple[Entry, ...]
    search: SearchCost | None = None


class Ledger:
    """All releases so far under a plan.

    A ledger that is constructed and not opened counts steps; nobody has paid, so that nothing can be released from it.

    Guarantees:
        No noise level is ever charged for more steps than the plan has at that level.
        A step that is repeated bit for bit is charged once.
        Opening a ledger charges the open budget once.
        Every sum that has got its noise is charged before it is used, or dropped.
        Nothing is released from a ledger that was not opened.
        Nothing is released before every step and every purchase of the plan is made.
        After it is settled nothing is released any more.
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        self.plan = plan
        self.charges: list[ChargedStep] = []
        self._left = dict(plan.noise_levels)
        self._mark_of: dict[int, int] = {}
        self._purchases = Purchases({})
        self._declared: tuple[Entry, ...] = ()
        self._search: SearchLedger | None = None
        self._is_opened = self._is_closed = self._has_sum = False

    @classmethod
    def open(
        cls,
        plan: PrivacyPlan,
        purchases: Mapping[str, float] | None = None,
        *,
        file: PurchaseFile | None = None,
        is_void: bool = False,
    ) -> Self:
        """Charge a plan.

        Args:
            plan: what will be spent.
            purchases: the purposes of the plan's `pure_epsilons`, in their order; None if the caller has bought them.
            file: keeps purchases until the run is over.
            is_void: whether the guarantee will be void; then an open budget refuses it.
        """
        ledger = cls._opened(plan, purchases, file)
        charge_open_budget(plan, is_void=is_void)
        return ledger

    @classmethod
    def open_all(cls, plans: Sequence[PrivacyPlan]) -> list[Self]:
        """Charge plans that are fixed at once with their joint cost, or none of them."""
        ledgers = [cls._opened(plan) for plan in plans]
        charge_open_budget(*plans)
        return ledgers

    @classmethod
    def _opened(
        cls, plan: PrivacyPlan, purchases: Mapping[str, float] | None = None, file: PurchaseFile | None = None
    ) -> Self:
        ledger = cls(plan)
        most = plan.max_records_per_person
        if purchases is None:
            elsewhere = "given by the caller", "bought elsewhere"
            ledger._declared = added_up(Entry(*elsewhere, epsilon, 1, most) for epsilon in plan.pure_epsilons)
        elif tuple(purchases.values()) != plan.pure_epsilons:
            raise LedgerError(f"a plan that pays for {plan.pure_epsilons} was to buy {dict(purchases)}")
        promised = purchases or {}
        ledger._purchases = Purchases(promised, most, None if file is None else file.open(plan, promised), file)
        ledger._is_opened = True
        return ledger

    def buy(self, purpose: str, draw: Callable[[Permit], float]) -> float:
        """The value that `draw` makes with a permit for this purpose, or made before, also in an interrupted run."""
        if not self._is_opened:
            raise LedgerError(f"{purpose!r} is bought by a ledger that was never charged")
        return self._purchases.buy(purpose, draw)

    def resume(self, charges: Iterable[ChargedStep]) -> None:
        """Enter the charges of an interrupted run, before any others."""
        if self.charges:
            raise LedgerError("a run is resumed after it has begun")
        for charge in charges:
            self.replay(*charge)

    def replay(self, step: int, mark: int | None) -> None:
        """Enter a line of a checkpoint's journal; if the plan has no room for it, that release was never used."""
        if self.can_afford(step):
            self.enter(step, mark)

    def holds(self, step: int, mark: int) -> bool:
        """Whether this very release of this step has been charged."""
        return (step, mark) in self._mark_of.items()

    def forget_marks(self) -> None:
        """After a fresh key charges stay, but no step can come out as it did before."""
        self._mark_of.clear()

    def has_charged(self, step: int) -> bool:
        """Whether some release of this step has been charged."""
        return step in self._mark_of

    def can_afford(self, step: int) -> bool:
        """Whether the plan has room for one more release at this step's noise."""
        return self._left[self.plan.noise_at(step)] > 0

    def enter(self, step: int, mark: int | None) -> None:
        """Charge a release, before anybody sees it."""
        if self._is_closed or not self.can_afford(step):
            raise LedgerError(f"step {step} is beyond the plan")
        self._left[self.plan.noise_at(step)] -= 1
        if mark is not None:
            self._mark_of[step] = mark
        self.charges.append((step, mark))

    def made(self) -> None:
        """Note that a noisy sum exists; `use` or `drop` must follow before the next one.

        From a ledger that was never charged nothing is released: an audit makes as many sums as it likes.
        """
        if not self._is_opened:
            return
        if self._has_sum or self._is_closed:
            raise LedgerError("a sum was made before the one before it was charged, or after the run")
        self._has_sum = True

    def use(self, step: int, mark: int) -> None:
        """Note that the sum is used from here on; it must have been charged."""
        if not self.holds(step, mark):
            raise LedgerError(f"step {step} was to be used and was not charged")
        self.drop()

    def drop(self) -> None:
        """Note that the sum is gone."""
        if self._is_opened and not self._has_sum:
            raise LedgerError("a sum was to be used or dropped that the ledger was not told of")
        self._has_sum = False

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that was spent."""
        most = self.plan.max_records_per_person
        mechanism = "Gaussian noise on a clipped sum" if self.plan.is_private else "a sum without noise"
        taken = ((noise, steps - self._left[noise]) for noise, steps in self.plan.noise_levels)
        training = (Entry("training", mechanism, noise, count, most) for noise, count in taken if count)
        return (*training, *self._declared, *self._purchases.entries)

    def settle(self) -> Settled:
        """Compare the charges with the plan; nothing is released afterwards."""
        if self._search is not None:
            return self._search.settle(self)
        self.reconcile()
        return Settled(self.plan, self.entries)

    def reconcile(self) -> None:
        """Raise unless every step and purchase was made, and close."""
        if not self._is_opened:
            raise LedgerError("a release was to be made from a ledger that was never charged")
        if self._has_sum:
            raise LedgerError("a sum was made and neither charged nor dropped")
        if any(self._left.values()):
            raise LedgerError(f"{sum(self._left.values())} of the plan's {self.plan.steps} steps were not charged")
        if missing := self._purchases.missing():
            raise LedgerError(f"{', '.join(map(repr, missing))} was promised and not bought")
        self._purchases.close()
        self._is_closed = True


class SearchLedger:
    """A ledger for each candidate of a search, all trained on one part of the people, and a choice by the other part.

    Guarantees:
        A search is charged once, for all fits and the choice.
        A person who chooses is charged for all rows.
        Nothing of a candidate is released before all candidates and the choice are settled.
    """

    def __init__(
        self, plans: Sequence[PrivacyPlan], purchases: Sequence[Mapping[str, float]], *, epsilon: float, delta: float
    ) -> None:
        """Charge plans that together cost at most epsilon and delta, and a choice that costs a person epsilon."""
        check_available()
        (most,) = {plan.max_records_per_person for plan in plans}
        of_fits = composed_epsilon(plans, delta)
        if of_fits > epsilon or any(plan.delta != delta for plan in plans):
            raise LedgerError(f"candidates that cost epsilon {of_fits:.4g} together were to cost {epsilon:g}")
        self.cost = SearchCost(len(plans), epsilon, delta, of_fits, epsilon)
        self.ledgers = [Ledger._opened(plan, named) for plan, named in zip(plans, purchases, strict=True)]
        for ledger in self.ledgers:
            ledger._search = self
        self._choice = Purchases({CHOICE: epsilon / most}, most)
        charge_open_budget(*plans, epsilon_of_others=epsilon)

    def choose(self, draw: Callable[[Permit], int]) -> int:
        """The index of the candidate that `draw` chooses with its permit."""
        return int(self._choice.buy(CHOICE, draw))

    def settle(self, candidate: Ledger) -> Settled:
        """One candidate's settled ledger, once all candidates and the choice are checked."""
        for ledger in self.ledgers:
            ledger.reconcile()
        if self._choice.missing():
            raise LedgerError("a candidate was to be released before the choice")
        self._choice.close()
        fits = (entry for ledger in self.ledgers for entry in ledger.entries)
        return Settled(candidate.plan, added_up([*fits, *self._choice.entries]), self.cost)
