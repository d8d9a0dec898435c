"""Several fits on the same people: their joint cost, and a limit that they keep to.

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

Plans that are charged at once were fixed at once (`fit_many`, a search): their joint cost is charged.
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
from dpbnn.privacy.accountants import account
from dpbnn.privacy.plan import PrivacyPlan

__all__ = [
    "BudgetAccountant",
    "BudgetError",
    "JointCharge",
    "ancestor",
    "budget_process",
    "charge_open_budget",
    "composed_epsilon",
    "refuse_elsewhere",
]

COMPOSITIONS = ("basic", "rdp")
ORDERS = tuple(1 + 2 ** (k / 4) for k in range(-12, 40))
ROUNDING = 1e-9
"""The error that adding up may make, relative to the budget."""

PROCESS_VARIABLE = "DPBNN_BUDGET_PROCESS"
"""The environment variable that tells processes started meanwhile which process has the open budget."""
SIGN = "dpbnn-budget"
"""The name of a file in memory that a process holds while its budget is open: older workers look for it."""

_open: list["BudgetAccountant"] = []
"""The open budget, if there is one, for all threads of this process."""
_opening = Lock()
"""Held while a budget is opened or closed, so that of two threads one sees the other's budget."""


class BudgetError(DpbnnError):
    """A fit would spend more than is left."""


@dataclass(frozen=True)
class JointCharge:
    """Runs that were all fixed beforehand, and a release without delta on the records of other people.

    Nobody pays for both: the cost is the larger one.
    """

    plans: tuple[PrivacyPlan, ...]
    epsilon_of_others: float = 0.0

    @property
    def cost(self) -> tuple[float, float]:
        """Epsilon and delta: added up, or by Renyi divergences where that is less; by the package's own accountants."""
        others = self.epsilon_of_others
        epsilon = max(others, math.fsum(account(plan.charge(), own_only=True).epsilon for plan in self.plans))
        delta = max(plan.delta for plan in self.plans)
        if len(self.plans) > 1 and (composed := max(others, composed_epsilon(self.plans, delta))) <= epsilon:
            return composed, delta
        return epsilon, math.fsum(plan.delta for plan in self.plans)

    def divergence(self, order: float) -> float:
        """The Renyi divergence of this order."""
        from dpbnn.privacy.accountants.rdp import pure_divergences

        runs = math.fsum(_divergences(plan, (order,))[0] for plan in self.plans)
        return max(runs, float(pure_divergences(self.epsilon_of_others, (order,))[0]))


class BudgetAccountant:
    """A budget for everything that is fitted inside of it, in all threads of this process, all on the same people.

    While it is open, all processes that this one has started refuse fits. Those that it starts or sends an estimator to
    meanwhile (``n_jobs``) refuse them later, too. Charge by hand the fits of processes that it has not started, and, on
    other systems than Linux, those of older processes with models that were not sent meanwhile.

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
        self.charges: list[JointCharge] = []
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
            os.environ[PROCESS_VARIABLE] = str(os.getpid())
            self._sign = _put_up_sign()
        return self

    def __exit__(self, *_: object) -> None:
        with _opening:
            _open.remove(self)
            del os.environ[PROCESS_VARIABLE]
            if self._sign is not None:
                os.close(self._sign)

    def charge(self, *plans: PrivacyPlan, epsilon_of_others: float = 0.0) -> None:
        """Spend the joint cost of plans that are fixed at once, or refuse all of them (see `JointCharge`)."""
        refuse_elsewhere()
        with self._lock:
            self._charge(JointCharge(plans, epsilon_of_others))

    def _charge(self, further: JointCharge) -> None:
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
        """The epsilon and delta that are left."""
        spent = self.spent()
        left = max(0.0, self.epsilon - spent[0])
        return left, self.delta if self.composition == "rdp" else max(0.0, self.delta - spent[1])

    def _spent(self, charges: list[JointCharge], order: float | None) -> tuple[float, float]:
        if self.composition == "basic":
            epsilons, deltas = zip(*(charge.cost for charge in charges), strict=True)
            return math.fsum(epsilons), math.fsum(deltas)
        assert order is not None
        total = math.fsum(charge.divergence(order) for charge in charges)
        return _epsilon(order, total, self.delta), self.delta

    def _order_for(self, plan: PrivacyPlan) -> float | None:
        """The order at which most fits like the first one would be within the budget."""
        if self.composition == "basic":
            return None

        def fits(order: float, divergence: float) -> float:
            return (self.epsilon - _epsilon(order, 0.0, self.delta)) / divergence if divergence > 0 else math.inf

        at_orders = zip(ORDERS, _divergences(plan, ORDERS), strict=True)
        return max(at_orders, key=lambda pair: fits(*pair))[0]


def _divergences(plan: PrivacyPlan, orders: tuple[float, ...]) -> list[float]:
    """The Renyi divergence of a run at each order."""
    from dpbnn.privacy.accountants.rdp import divergences  # which loads the accounting libraries

    return [float(divergence) for divergence in divergences(plan.charge(), orders)]


def _epsilon(order: float, divergence: float, delta: float) -> float:
    """``rdp + log(1 - 1/a) - log(delta a) / (a - 1)``, as for a single run."""
    return max(0.0, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def composed_epsilon(plans: Sequence[PrivacyPlan], delta: float) -> float:
    """The joint epsilon of runs that are all fixed beforehand, by Renyi divergences."""
    totals = map(math.fsum, zip(*(_divergences(plan, ORDERS) for plan in plans), strict=True))
    return min(_epsilon(order, total, delta) for order, total in zip(ORDERS, totals, strict=True))


def budget_process() -> int | None:
    """The process whose open budget pays for fits of this process.

    An ancestor's comes first: a budget that was opened here does not pay for one that a parent opened later.
    """
    parent = next((process for process in _ancestors() if _has_sign(process)), None)
    known = os.environ.get(PROCESS_VARIABLE)
    return int(known) if parent is None and known is not None else parent


def ancestor(process: int | None) -> int | None:
    """The process, if this one descends from it: an estimator that was saved under a budget may be read long after."""
    return process if process is not None and process in _ancestors() else None


def _put_up_sign() -> int | None:
    with suppress(AttributeError, OSError):  # a system without such files
        return os.memfd_create(SIGN)
    return None


def _has_sign(process: int) -> bool:
    """Whether a process has an open budget, as far as the system tells."""
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(file).startswith(f"/memfd:{SIGN}"):
                    return True
    return False


def _ancestors() -> Iterator[int]:
    """The processes that this one descends from, as far as the system tells, through fork servers too."""
    process = os.getppid()
    with suppress(OSError, ValueError, IndexError):  # a system without such files
        while process > 0:
            yield process
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def refuse_elsewhere(sent_from: int | None = None) -> None:
    """Refuse fits that a budget in another process has to pay for, such as those of estimators `sent_from` there."""
    if sent_from is not None or budget_process() not in (None, os.getpid()):
        raise BudgetError(
            "A fit in another process cannot be counted by a BudgetAccountant; fit in its own process (n_jobs=1). "
            "Processes that were started while it was open refuse also after it is closed: let joblib start new ones, "
            "by joblib.externals.loky.get_reusable_executor().shutdown()."
        )


def charge_open_budget(*plans: PrivacyPlan, epsilon_of_others: float = 0.0, is_void: bool = False) -> None:
    """Charge the open budget, if there is one. Ledgers alone call this, when they are opened."""
    refuse_elsewhere()
    if not _open:
        return
    if is_void:
        raise BudgetError("A fit whose guarantee is void must not be charged to a budget; leave out what voids it.")
    _open[0].charge(*plans, epsilon_of_others=epsilon_of_others)
