"""Bugs between a plan and its epsilon."""

import math
from dataclasses import replace

import dpbnn
from dpbnn.audit.claim import epsilon_shown
from tests.audit.planted.common import PLAN, Bug

SAMPLED = replace(PLAN, dataset_size=1000, batch_size=50, steps=50, noise_multiplier=0.8)
PLANS = (
    PLAN,
    SAMPLED,
    replace(PLAN, max_records_per_person=3),
    replace(SAMPLED, max_records_per_person=3, noise_multiplier=2.0),
    replace(SAMPLED, noise_multiplier=((0.8, 25), (1.2, 25))),
    replace(SAMPLED, dataset_size=500, batch_size=1, steps=100, noise_multiplier=0.6, delta=1e-6),
)
BOUGHT, ROWS = 0.5, 3
ONLY_BOUGHT = replace(PLAN, noise_multiplier=1e6, pure_epsilons=(BOUGHT,), max_records_per_person=ROWS)


def claims():
    """Contract: a plan claims no less than an attacker can show, for any levels, rates and rows per person."""
    return any(plan.epsilon() < epsilon_shown(plan) for plan in PLANS)


def bought():
    """Contract: what is bought without a delta costs its epsilon for every row of a person."""
    whole = math.exp(ROWS * BOUGHT)
    return ONLY_BOUGHT.epsilon() < math.log(whole - ONLY_BOUGHT.delta * (1 + whole)) - 1e-6  # randomized response


def accounted_as(change):
    """A patch that accounts for another plan than the one that is followed."""

    def plant(patch):
        original = dpbnn.PrivacyPlan.account

        def planted(self, accountant=None, **how):
            return original(change(self), accountant, **how)

        patch.setattr(dpbnn.PrivacyPlan, "account", planted)

    return plant


def half_of_epsilon(patch):
    original = dpbnn.PrivacyPlan.account

    def planted(self, *arguments, **how):
        found = original(self, *arguments, **how)
        return replace(found, epsilon=found.epsilon / 2)

    patch.setattr(dpbnn.PrivacyPlan, "account", planted)


def one_step_less(patch):
    original = dpbnn.PrivacyPlan.account

    def planted(self, accountant=None, *, adjacency="add_or_remove", steps=None):
        return original(self, accountant, adjacency=adjacency, steps=(self.steps if steps is None else steps) - 1)

    patch.setattr(dpbnn.PrivacyPlan, "account", planted)


def by_an_approximation(patch):
    original = dpbnn.PrivacyPlan.account

    def planted(self, accountant=None, *, adjacency="add_or_remove", **how):
        tightest = "gdp" if adjacency == "add_or_remove" else None
        return original(self, accountant or tightest, adjacency=adjacency, **how)

    patch.setattr(dpbnn.PrivacyPlan, "account", planted)


def with_most_noise(plan):
    return replace(plan, noise_multiplier=max(noise for noise, _ in plan.noise_levels))


def each_row_bought_a_part(plan):
    each = tuple(epsilon / plan.max_records_per_person for epsilon in plan.pure_epsilons)
    return replace(plan, pure_epsilons=each)


BUGS = [
    Bug("half of epsilon", half_of_epsilon, claims),
    Bug("accounted for one step less", one_step_less, claims),
    Bug(
        "accounted at half the sampling rate",
        accounted_as(lambda plan: replace(plan, batch_size=max(1, plan.batch_size // 2))),
        claims,
    ),
    Bug("accounted at the largest noise of all levels", accounted_as(with_most_noise), claims),
    Bug("an approximation quoted as a bound", by_an_approximation, claims),
    Bug("bounds paid for as by one row of a person", accounted_as(each_row_bought_a_part), bought),
    Bug("bounds not paid for", accounted_as(lambda plan: replace(plan, pure_epsilons=())), bought),
]
