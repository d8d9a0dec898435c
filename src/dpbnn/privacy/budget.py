"""Several fits on the same people: what they spend together, and a limit that none of them gets beyond.

    >>> from dpbnn.privacy.plan import PrivacyPlan
    >>> settings = dict(dataset_size=1000, batch_size=100, steps=50, clip_norm=1.0, delta=1e-6)
    >>> with BudgetAccountant(epsilon=1.0, delta=1e-5) as budget:
    ...     budget.charge(PrivacyPlan.for_budget(epsilon=0.6, **settings))
    ...     round(budget.remaining()[0], 3)
    0.4

Later fits are chosen after seeing what earlier ones released, so that composition has to be fully adaptive:

    basic   epsilons and deltas add up
    rdp     Renyi divergences at one order add up and are stopped by a filter (Feldman and Zrnic 2021); the order is
            fixed by the first charge, before anything was released, and converts to epsilon at the end

What is charged at once was fixed at once (`fit_many`, a search), and costs what it does together.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.privacy.plan import PrivacyPlan

__all__ = [
    "BudgetAccountant",
    "BudgetError",
    "Together",
    "ancestor",
    "charge_open_budget",
    "composed_epsilon",
    "home",
    "refuse_elsewhere",
]

COMPOSITIONS = ("basic", "rdp")
ORDERS = tuple(1 + 2 ** (k / 4) for k in range(-12, 40))
ROUNDING = 1e-9
"""Of the budget: what adding up may be off by."""

HOME = "DPBNN_BUDGET_PROCESS"
"""Says to processes that are started meanwhile where the open budget is."""
SIGN = "dpbnn-budget"
"""The name of a file in memory that a process holds while it has an open budget: it says so to older workers."""

_open: list["BudgetAccountant"] = []
"""The one that is open, for all threads of this process."""
_opening = Lock()
"""Of two threads that open a budget, one finds the other's."""


class BudgetError(DpbnnError):
    """A fit would spend more than is left."""


@dataclass(frozen=True)
class Together:
    """Runs that were all fixed beforehand; and, of people whom none of them sees, a release without delta.

    Nobody pays for both: the cost is the larger one.
    """

    plans: tuple[PrivacyPlan, ...]
    epsilon_of_others: float = 0.0

    @property
    def cost(self) -> tuple[float, float]:
        """Epsilon and delta: added up, or where that is less, by Renyi divergences."""
        others = self.epsilon_of_others
        epsilon = max(others, math.fsum(plan.epsilon() for plan in self.plans))
        delta, largest = math.fsum(plan.delta for plan in self.plans), max(plan.delta for plan in self.plans)
        if len(self.plans) > 1 and (composed := max(others, composed_epsilon(self.plans, largest))) <= epsilon:
            return composed, largest
        return epsilon, delta

    def divergence(self, order: float) -> float:
        """Renyi's, of this order."""
        from dpbnn.privacy.accountants.rdp import divergences, pure_divergences

        runs = math.fsum(float(divergences(plan.charge(), (order,))[0]) for plan in self.plans)
        return max(runs, float(pure_divergences(self.epsilon_of_others, (order,))[0]))


class BudgetAccountant:
    """A budget for everything that is fitted inside of it, in all threads of this process, all on the same people.

    While it is open, fits are refused in all processes that this one has started, and later in those that it started
    or sent an estimator to meanwhile (``n_jobs``). What processes do that it has not started, or without Linux older
    ones with models that were not sent meanwhile, has to be charged by hand.

    Args:
        epsilon: of all fits together.
        delta: of all fits together.
        composition: "basic" or "rdp" (tighter for many fits).

    Guarantees:
        A fit that would go over is refused before anything but checks has looked at a record.
        What was charged stays charged, also where a fit fails.
    """

    def __init__(self, epsilon: float, delta: float, composition: str = "basic") -> None:
        self.epsilon = _validate.positive("epsilon", epsilon)
        self.delta = _validate.fraction("delta", delta)
        self.composition = _validate.one_of("composition", composition, COMPOSITIONS)
        self.charges: list[Together] = []
        self._order: float | None = None
        self._lock = Lock()
        self._sign: int | None = None

    def __repr__(self) -> str:
        epsilon, delta = self.spent()
        return f"BudgetAccountant(spent {epsilon:.4g} of epsilon {self.epsilon:g}, {delta:.3g} of delta {self.delta:g})"

    def __enter__(self) -> Self:
        with _opening:
            if _open:
                raise DpbnnError("A BudgetAccountant must not be opened inside another one; charge the outer one.")
            refuse_elsewhere()
            _open.append(self)
            os.environ[HOME] = str(os.getpid())
            self._sign = _put_up_sign()
        return self

    def __exit__(self, *_: object) -> None:
        with _opening:
            _open.remove(self)
            del os.environ[HOME]
            if self._sign is not None:
                os.close(self._sign)

    def charge(self, *plans: PrivacyPlan, epsilon_of_others: float = 0.0) -> None:
        """Spend what plans cost that are fixed at once, or refuse all of them (see `Together`)."""
        refuse_elsewhere()
        with self._lock:
            self._charge(Together(plans, epsilon_of_others))

    def _charge(self, further: Together) -> None:
        first = (self.charges or [further])[0].plans[0]
        for plan in further.plans:
            if not plan.is_private:
                raise BudgetError("A fit without privacy must not be charged to a budget: it would spend all of it.")
            if plan.max_records_per_person != first.max_records_per_person:
                expected = f"{first.max_records_per_person}, as in all fits of this budget"
                _validate.refuse("max_records_per_person", expected, plan.max_records_per_person)
        order = self._order or self._order_for(further.plans[0])
        spent = self._spent([*self.charges, further], order)
        if spent[0] > self.epsilon * (1 + ROUNDING) or spent[1] > self.delta * (1 + ROUNDING):
            left = self.remaining()
            raise BudgetError(
                f"This would bring what is spent to epsilon {spent[0]:.4g} and delta {spent[1]:.3g}, beyond the "
                f"budget of {self.epsilon:g} and {self.delta:g}; left are {left[0]:.4g} and {left[1]:.3g}. Ask "
                "for less."
            )
        self._order = order
        self.charges.append(further)

    def spent(self) -> tuple[float, float]:
        """Epsilon and delta of everything so far."""
        return self._spent(self.charges, self._order) if self.charges else (0.0, 0.0)

    def remaining(self) -> tuple[float, float]:
        """Epsilon and delta that are not spent yet."""
        spent = self.spent()
        left = max(0.0, self.epsilon - spent[0])
        return left, self.delta if self.composition == "rdp" else max(0.0, self.delta - spent[1])

    def _spent(self, charges: list[Together], order: float | None) -> tuple[float, float]:
        if self.composition == "basic":
            costs = [own.cost for own in charges]
            return math.fsum(epsilon for epsilon, _ in costs), math.fsum(delta for _, delta in costs)
        assert order is not None
        total = math.fsum(own.divergence(order) for own in charges)
        return _epsilon(order, total, self.delta), self.delta

    def _order_for(self, plan: PrivacyPlan) -> float | None:
        """The order at which most fits like the first one would be within the budget."""
        if self.composition == "basic":
            return None
        from dpbnn.privacy.accountants.rdp import divergences

        at = divergences(plan.charge(), ORDERS)
        room = [self.epsilon - _epsilon(order, 0.0, self.delta) for order in ORDERS]
        number = [left / float(own) if own > 0 else math.inf for left, own in zip(room, at, strict=True)]
        return ORDERS[max(range(len(ORDERS)), key=lambda index: number[index])]


def _epsilon(order: float, divergence: float, delta: float) -> float:
    """``rdp + log(1 - 1/a) - log(delta a) / (a - 1)``, as for a single run."""
    return max(0.0, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def composed_epsilon(plans: Sequence[PrivacyPlan], delta: float) -> float:
    """Of runs that are all fixed beforehand, together, by Renyi divergences."""
    from dpbnn.privacy.accountants.rdp import divergences

    by_plan = [divergences(plan.charge(), ORDERS) for plan in plans]
    totals = [math.fsum(own) for own in zip(*by_plan, strict=True)]
    return min(_epsilon(order, total, delta) for order, total in zip(ORDERS, totals, strict=True))


def home() -> int | None:
    """The process whose open budget pays for what is done or begun here.

    An older process comes first: a budget that was opened here does not pay for a later one of a parent's.
    """
    parent = next((process for process in _ancestors() if _has_sign(process)), None)
    known = os.environ.get(HOME)
    return int(known) if parent is None and known is not None else parent


def ancestor(process: int | None) -> int | None:
    """The process, if this one descends from it: what was saved to a file under a budget may be read long after it."""
    return process if process is not None and process in _ancestors() else None


def _put_up_sign() -> int | None:
    with suppress(AttributeError, OSError):  # a system without such files
        return os.memfd_create(SIGN)
    return None


def _has_sign(process: int) -> bool:
    """Whether it has an open budget, as far as the system tells."""
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(file).startswith(f"/memfd:{SIGN}"):
                    return True
    return False


def _ancestors() -> Iterator[int]:
    """The processes that this one descends from, as far as the system tells: of a fork server, who has started it."""
    process = os.getppid()
    while process > 0:
        yield process
        try:
            after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
            process = int(after_name.split()[1])
        except (OSError, ValueError, IndexError):  # a system without such files
            return


def refuse_elsewhere(sent_from: int | None = None) -> None:
    """Refuse what a budget in another process has to pay for, such as what was `sent_from` there."""
    if sent_from is not None or home() not in (None, os.getpid()):
        raise BudgetError(
            "A fit in another process cannot be counted by a BudgetAccountant; fit in its own process (n_jobs=1). "
            "Processes that were started while it was open refuse also after it is closed: let joblib start new ones, "
            "by joblib.externals.loky.get_reusable_executor().shutdown()."
        )


def charge_open_budget(*plans: PrivacyPlan, epsilon_of_others: float = 0.0, is_void: bool = False) -> None:
    """Charge the budget that is open, if there is one; only a ledger that is opened does so."""
    refuse_elsewhere()
    if not _open:
        return
    if is_void:
        raise BudgetError("A fit whose guarantee is void must not be charged to a budget; leave out what voids it.")
    _open[0].charge(*plans, epsilon_of_others=epsilon_of_others)
