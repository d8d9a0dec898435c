"""The accountants by name, and the tightest bound among them.

    >>> from dpbnn.privacy.accountants import Charge, account
    >>> paper = Charge(sampling_rate=256 / 60_000, noise_levels=((1.3, 3515),), delta=1e-5)
    >>> tightest = account(paper)
    >>> round(tightest.epsilon, 4), tightest.accountant
    (0.8645, 'pld')

One of the package's own is one file and one line in `OWN`. Any other is registered by its user; what it gives says so
wherever it appears, since nobody here has checked that it is a bound.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType

from dpbnn._validate import one_of
from dpbnn.errors import DpbnnError
from dpbnn.privacy.accountants.charge import ADJACENCIES, Accountant, Accounting, Charge

__all__ = ["ACCOUNTANTS", "account", "bounds", "foreign_module", "quick_epsilon", "register", "unregister"]

HOPELESS_EPSILON = 1000.0


def _own(
    name: str, title: str, *, is_bound: bool = True, is_quick: bool = False, adjacencies: tuple[str, ...] = ADJACENCIES
) -> Accountant:
    """The `account` of the module of that name, whose libraries are loaded when it is asked."""

    def compute(charge: Charge) -> Accounting:
        answer: Accounting = import_module(f"dpbnn.privacy.accountants.{name}").account(charge)
        return answer

    covers = {"covers_several_records": True, "covers_pure_releases": True}
    return Accountant(name, title, compute, is_bound, is_quick, adjacencies, **covers)


OWN = (
    _own("pld", "privacy loss distributions (PLD)"),
    _own("rdp", "Renyi differential privacy (RDP)", is_quick=True),
    _own("gdp", "Gaussian DP by the central limit theorem (GDP)", is_bound=False, adjacencies=("add_or_remove",)),
)
"""The package's; of two bounds that agree the first stands."""

_registered = {accountant.name: accountant for accountant in OWN}
ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(_registered)
"""All accountants by name."""


def bounds() -> tuple[str, ...]:
    """The names of those that give a valid upper bound: the only ones that may stand in a guarantee."""
    return tuple(name for name, accountant in ACCOUNTANTS.items() if accountant.is_bound)


def register(accountant: Accountant) -> None:
    """Let an accountant of yours take part: by its name, and if it is a bound, in the tightest.

    Guarantees:
        No accountant takes the place of another.
    """
    if not isinstance(accountant, Accountant):
        raise DpbnnError(f"accountant must be an Accountant, got {accountant!r}.")
    if accountant.name in ACCOUNTANTS:
        raise DpbnnError(f"accountant must have a name of its own, got {accountant.name!r}, which is taken.")
    _registered[accountant.name] = accountant


def unregister(name: str) -> None:
    """Take back an accountant that was registered; the package's own stay."""
    others = [known for known in ACCOUNTANTS if foreign_module(known)]
    del _registered[one_of("accountant to unregister", name, others)]


def foreign_module(name: str) -> str:
    """The module that an accountant comes from, if it is not one of the package's own."""
    accountant = ACCOUNTANTS.get(name)
    if accountant is None or any(accountant is own for own in OWN):
        return ""
    return str(getattr(accountant.compute, "__module__", type(accountant.compute).__module__))


def account(charge: Charge, accountant: str | None = None) -> Accounting:
    """The epsilon by one accountant, or the tightest valid one where none is named.

    Guarantees:
        The tightest is never below the exact Gaussian.
        The tightest is the least of all bounds.
        GDP is never the tightest.
        An accountant that is not the package's own is called that.
    """
    if accountant is not None:
        return _with_origin(_answer(ACCOUNTANTS[one_of("accountant", accountant, ACCOUNTANTS)], charge))
    is_hopeless = quick_epsilon(replace(charge, adjacency="add_or_remove")) > HOPELESS_EPSILON
    asked = [own for own in map(ACCOUNTANTS.__getitem__, bounds()) if own.is_quick or not is_hopeless]
    answers = [_answer(own, charge) for own in asked]
    best = min(answers, key=lambda answer: answer.epsilon)
    return _with_origin(best, *_why_not_earlier(best, answers, is_hopeless))


def quick_epsilon(charge: Charge) -> float:
    """The least by the bounds that answer at once."""
    quick = (own for own in map(ACCOUNTANTS.__getitem__, bounds()) if own.is_quick)
    return min(_answer(own, charge).epsilon for own in quick)


@lru_cache(maxsize=4096)
def _answer(accountant: Accountant, charge: Charge) -> Accounting:
    """What an accountant says, remembered; what cannot be an epsilon of its is refused."""
    answer = accountant.account(charge)
    if not isinstance(answer, Accounting) or answer.accountant != accountant.name or not answer.epsilon >= 0:
        raise DpbnnError(
            f"The accountant {accountant.name!r} must give an Accounting of that name with an epsilon >= 0, got "
            f"{answer!r}; correct or unregister it."
        )
    return answer


def _why_not_earlier(best: Accounting, answers: list[Accounting], is_hopeless: bool) -> list[str]:
    """Why those that are registered before the tightest do not stand."""
    reasons = []
    if is_hopeless and (slow := [name for name in bounds() if not ACCOUNTANTS[name].is_quick]):
        left_out = " and ".join(name.upper() for name in slow)
        reasons.append(
            f"epsilon is above {HOPELESS_EPSILON:.0f} by {best.accountant.upper()}, so {left_out} was not tried"
        )
    earlier = answers[: answers.index(best)]
    reasons += [answer.remark for answer in earlier if answer.epsilon == math.inf]
    if above := [answer.accountant for answer in earlier if answer.epsilon < math.inf]:
        reasons.append(f"{best.accountant.upper()} is below {above[0].upper()} here")
    return reasons


def _with_origin(answer: Accounting, *reasons: str) -> Accounting:
    module = foreign_module(answer.accountant)
    origin = f"{answer.accountant.upper()} is not dpbnn's, but of the module {module}" if module else ""
    remark = "; ".join(filter(None, (*reasons, answer.remark, origin)))
    return answer if remark == answer.remark else replace(answer, remark=remark)
