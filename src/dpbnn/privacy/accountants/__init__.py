"""Accountants: what a run of noisy releases costs in epsilon.

Adding one is one file with an `Accountant` and one line in the registry below.

    >>> from dpbnn.privacy.accountants import Charge, account
    >>> paper = Charge(sampling_rate=256 / 60_000, noise_levels=((1.3, 3515),), delta=1e-5)
    >>> tightest = account(paper)
    >>> round(tightest.epsilon, 4), tightest.accountant
    (0.8645, 'pld')
"""

import math
from dataclasses import replace
from functools import lru_cache

from dpbnn._validate import one_of
from dpbnn.privacy.accountants.charge import ADJACENCIES, Accountant, Accounting, Charge
from dpbnn.privacy.accountants.gdp import GDP
from dpbnn.privacy.accountants.pld import PLD
from dpbnn.privacy.accountants.rdp import RDP

__all__ = ["ACCOUNTANTS", "ADJACENCIES", "BOUNDS", "Accountant", "Accounting", "Charge", "account"]

ACCOUNTANTS = {accountant.name: accountant for accountant in (PLD, RDP, GDP)}
"""All accountants by name."""

BOUNDS = tuple(name for name, accountant in ACCOUNTANTS.items() if accountant.is_bound)
"""The names of those that give a valid upper bound: the only ones that may stand in a guarantee."""

_HOPELESS_EPSILON = 1000.0


@lru_cache(maxsize=4096)
def account(charge: Charge, accountant: str | None = None) -> Accounting:
    """The epsilon by one accountant, or the tightest valid one where none is named.

    Guarantees:
        The tightest is never below the exact Gaussian.
        The tightest is the smaller of PLD and RDP.
        GDP is never the tightest.
    """
    if accountant is not None:
        return ACCOUNTANTS[one_of("accountant", accountant, ACCOUNTANTS)].account(charge)
    by_rdp = account(charge, "rdp")
    if account(replace(charge, adjacency="add_or_remove"), "rdp").epsilon > _HOPELESS_EPSILON:
        return _stands(by_rdp, f"epsilon is above {_HOPELESS_EPSILON:.0f} by RDP, so PLD was not tried")
    by_pld = account(charge, "pld")
    if by_pld.epsilon <= by_rdp.epsilon:
        return by_pld
    return _stands(by_rdp, by_pld.remark if by_pld.epsilon == math.inf else "RDP is below PLD here")


def _stands(by_rdp: Accounting, reason: str) -> Accounting:
    return Accounting(by_rdp.epsilon, by_rdp.accountant, "; ".join(filter(None, (reason, by_rdp.remark))))
