"""The accountants by name, and the tightest bound among them.

    >>> from dpbnn.privacy.accountants import Charge, account
    >>> paper = Charge(sampling_rate=256 / 60_000, noise_levels=((1.3, 3515),), delta=1e-5)
    >>> tightest = account(paper)
    >>> round(tightest.epsilon, 4), tightest.accountant
    (0.8645, 'pld')

An accountant of the package is one file and one line in `OWN`. Others are registered by users; their figures say so
wherever they appear, since dpbnn has not checked that they are bounds.
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
    """The accountant in the module of that name; the libraries of the module are loaded when it is asked."""

    def compute(charge: Charge) -> Accounting:
        answer: Accounting = import_module(f"dpbnn.privacy.accountants.{name}").account(charge)
        return answer

    return Accountant(name, title, compute, is_bound, is_quick, adjacencies, True, True)


OWN = (
    _own("pld", "privacy loss distributions (PLD)"),
    _own("rdp", "Renyi differential privacy (RDP)", is_quick=True),
    _own("gdp", "Gaussian DP by the central limit theorem (GDP)", is_bound=False, adjacencies=("add_or_remove",)),
)
"""The package's accountants; of two bounds that agree the first stands."""

_registered = {accountant.name: accountant for accountant in OWN}
ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(_registered)
"""All accountants by name."""


def bounds() -> tuple[str, ...]:
    """The names of the accountants that give a valid upper bound: no others may stand in a guarantee."""
    return tuple(known.name for known in _bounds())


def register(accountant: Accountant) -> None:
    """Add an accountant; if it is a bound, the tightest epsilon takes it into account.

    Guarantees:
        No accountant takes the place of another.
    """
    if not isinstance(accountant, Accountant):
        raise DpbnnError(f"accountant must be an Accountant, got {accountant!r}.")
    if accountant.name in ACCOUNTANTS:
        raise DpbnnError(f"accountant must have a name of its own, got {accountant.name!r}, which is taken.")
    _registered[accountant.name] = accountant


def unregister(name: str) -> None:
    """Remove an accountant that was registered; the package's own stay."""
    del _registered[one_of("accountant to unregister", name, filter(foreign_module, ACCOUNTANTS))]


def foreign_module(name: str) -> str:
    """The module that an accountant comes from; empty for the package's own."""
    accountant = ACCOUNTANTS.get(name)
    if accountant is None or any(accountant is own for own in OWN):
        return ""
    return str(getattr(accountant.compute, "__module__", type(accountant.compute).__module__))


def account(charge: Charge, accountant: str | None = None, *, own_only: bool = False) -> Accounting:
    """The epsilon by one accountant, or the tightest valid one where none is named: of all, or of the package's own.

    Guarantees:
        The tightest is never below the exact Gaussian.
        The tightest is the least of all bounds.
        GDP is never the tightest.
        An accountant that is not the package's own is called that.
    """
    if accountant is not None:
        return _with_origin(_answer(ACCOUNTANTS[one_of("accountant", accountant, ACCOUNTANTS)], charge))
    known_bounds = [known for known in _bounds() if not (own_only and foreign_module(known.name))]
    removed = replace(charge, adjacency="add_or_remove")
    is_hopeless = min(_answer(known, removed).epsilon for known in known_bounds if known.is_quick) > HOPELESS_EPSILON
    left_out = [known for known in known_bounds if is_hopeless and not known.is_quick]
    answers = [_answer(known, charge) for known in known_bounds if known not in left_out]
    best = min(answers, key=lambda answer: answer.epsilon)
    reasons, name = [], best.accountant.upper()
    if left_out:
        untried = " and ".join(known.name.upper() for known in left_out)
        reasons.append(f"epsilon is above {HOPELESS_EPSILON:.0f} by {name}, so {untried} was not tried")
    earlier = answers[: answers.index(best)]
    reasons += [answer.remark for answer in earlier if answer.epsilon == math.inf]
    if above := [answer.accountant for answer in earlier if answer.epsilon < math.inf]:
        reasons.append(f"{name} is below {above[0].upper()} here")
    return _with_origin(best, *reasons)


def quick_epsilon(charge: Charge) -> float:
    """The least epsilon by the bounds that answer at once."""
    return min(_answer(known, charge).epsilon for known in _bounds() if known.is_quick)


def _bounds() -> list[Accountant]:
    return [known for known in ACCOUNTANTS.values() if known.is_bound]


@lru_cache(maxsize=4096)
def _answer(accountant: Accountant, charge: Charge) -> Accounting:
    """The answer of an accountant, remembered; an answer that cannot be its epsilon is refused."""
    answer = accountant.account(charge)
    if not isinstance(answer, Accounting) or answer.accountant != accountant.name or not answer.epsilon >= 0:
        raise DpbnnError(
            f"The accountant {accountant.name!r} must give an Accounting of that name with an epsilon >= 0, got "
            f"{answer!r}; correct or unregister it."
        )
    return answer


def _with_origin(answer: Accounting, *reasons: str) -> Accounting:
    module = foreign_module(answer.accountant)
    origin = f"{answer.accountant.upper()} is not dpbnn's, but of the module {module}" if module else ""
    remark = "; ".join(filter(None, (*reasons, answer.remark, origin)))
    return answer if remark == answer.remark else replace(answer, remark=remark)
