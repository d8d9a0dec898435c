"""Accountants: what a run of noisy releases costs in epsilon."""

from dpbnn.privacy.accountants.charge import ADJACENCIES, Accountant, Accounting, Charge
from dpbnn.privacy.accountants.registry import ACCOUNTANTS, account, bounds, foreign_module, register, unregister

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "Accountant",
    "Accounting",
    "Charge",
    "account",
    "bounds",
    "foreign_module",
    "register",
    "unregister",
]
