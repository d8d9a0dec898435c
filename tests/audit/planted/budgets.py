"""Bugs of budgets for several fits."""

import contextlib
from dataclasses import replace

import pytest

import dpbnn
from dpbnn.audit.claim import epsilon_shown
from dpbnn.privacy import budget
from dpbnn.training import fit as training
from dpbnn.training.steps import eager
from tests.audit.planted.common import PLAN, Bug, fitted

SEVERAL_ROWS = replace(PLAN, noise_multiplier=10.0, max_records_per_person=3)
FITS = 3


def spent():
    """Contract: a budget counts no less than an attacker on all of its fits can show."""
    together = replace(SEVERAL_ROWS, steps=FITS * SEVERAL_ROWS.steps)
    for composition in ("basic", "rdp"):
        account = dpbnn.BudgetAccountant(epsilon=8, delta=1e-4, composition=composition)
        for _ in range(FITS):
            account.charge(SEVERAL_ROWS)
        at = account.spent()
        if at[0] < epsilon_shown(replace(together, delta=at[1])):
            return True
    return False


def deltas():
    """Contract: deltas of fits that are chosen one after another add up."""
    account = dpbnn.BudgetAccountant(epsilon=1000, delta=1e-3)
    for _ in range(FITS):
        account.charge(SEVERAL_ROWS)
    return account.spent()[1] < FITS * SEVERAL_ROWS.delta * (1 - 1e-9)


def failed():
    """Contract: a fit that fails stays charged."""

    def broken(*_):
        raise KeyboardInterrupt

    with dpbnn.BudgetAccountant(epsilon=1000, delta=1e-3) as account:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(eager.EagerSteps, "take", broken)
            fitted()
        return account.spent()[0] == 0


def rows_ignored(patch):
    original = budget.JointCharge.divergence

    def planted(self, order):
        as_single = tuple(replace(plan, max_records_per_person=1) for plan in self.plans)
        return original(replace(self, plans=as_single), order)

    patch.setattr(budget.JointCharge, "divergence", planted)


def largest_delta(patch):
    original = dpbnn.BudgetAccountant._spent

    def planted(self, charges, order):
        return original(self, charges, order)[0], max(delta for charge in charges for delta in charge.cost[1:])

    patch.setattr(dpbnn.BudgetAccountant, "_spent", planted)


def given_back(patch):
    original = training.train

    def planted(*arguments, **how):
        try:
            return original(*arguments, **how)
        except BaseException:
            for account in budget._open:
                account.charges.pop()
            raise

    patch.setattr(training, "train", planted)


BUGS = [
    Bug("a budget by Renyi divergences that ignores rows per person", rows_ignored, spent),
    Bug("deltas of a budget not added up", largest_delta, deltas),
    Bug("a fit that fails is given back", given_back, failed),
]
