"""Bugs of a search for the best settings."""

from dataclasses import replace

import numpy as np
import pytest

from dpbnn.audit.checks import ALARM
from dpbnn.audit.claim import epsilon_shown
from dpbnn.privacy.ledger import SearchLedger, Settled
from dpbnn.privacy.purchases import Permit
from dpbnn.release import draft
from tests.audit.planted.common import Bug, seeded_drafts

PEOPLE, ROWS, CANDIDATES = 100, 3, 2
GROUPS = np.arange(PEOPLE * ROWS) // ROWS
SPLITS, SHARE = 300, 0.2


def searched(**how):
    from dpbnn.sklearn import DPBayesClassifier, DPGridSearch

    X = np.random.default_rng(0).uniform(0, 1, (PEOPLE * ROWS, 2))
    y = (X[:, 0] > 0.5).astype(int)
    estimator = DPBayesClassifier("sgd", bounds=(0, 1), epochs=3, max_records_per_person=ROWS, **how)
    grid = {"learning_rate": [0.1, 1.0]}
    return DPGridSearch(estimator, grid, epsilon=3.0).fit(X, y, groups=GROUPS)


def fits():
    """Contract: a search claims no less than an attacker on all of its fits can show."""
    pytest.importorskip("sklearn")
    pytest.importorskip("opendp")
    found = searched()
    plan = found.best_estimator_.settings_.plan
    shown = epsilon_shown(replace(plan, steps=CANDIDATES * plan.steps))
    claims = found.guarantee_.epsilon, found.guarantee_.epsilon_of_fits, found.best_estimator_.guarantee_.epsilon
    return min(claims) < shown


def choice():
    """Contract: the choice of a search hides all rows of a person."""
    pytest.importorskip("sklearn")
    opendp = pytest.importorskip("opendp.core")
    original, costs = opendp.measurement_invoke, []

    def invoked(measurement, values):
        costs.append(measurement.map(float(ROWS)))
        return original(measurement, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opendp, "measurement_invoke", invoked)
        found = searched()
    return len(costs) != 1 or costs[0] > found.guarantee_.epsilon_of_choice * (1 + 1e-6)


def scores():
    """Contract: scores of a search draw secretly, whatever its seed."""
    pytest.importorskip("sklearn")
    pytest.importorskip("opendp")
    original, seeds = draft.predict, []

    def noted(*given, seed):
        seeds.append(seed)
        return original(*given, seed=seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "predict", noted)
        searched(random_state=0)
    return len(seeds) != CANDIDATES or any(seed is not None for seed in seeds)


def split():
    """Contract: a search puts each person aside by a coin of their own, with all of their rows."""
    pytest.importorskip("sklearn")
    from scipy.stats import chi2

    from dpbnn.sklearn import search

    aside = np.stack([search._people_aside(len(GROUPS), SHARE, GROUPS) for _ in range(SPLITS)])
    by_person = aside.reshape(SPLITS, PEOPLE, ROWS)
    if (by_person != by_person[:, :, :1]).any():
        return True
    counts = by_person[:, :, 0].sum(axis=1)
    spread = ((counts - PEOPLE * SHARE) ** 2).sum() / (PEOPLE * SHARE * (1 - SHARE))
    return 2 * min(chi2.cdf(spread, SPLITS), chi2.sf(spread, SPLITS)) < ALARM


def of_search(name, planted):
    def plant(patch):
        from dpbnn.sklearn import search

        patch.setattr(search, name, planted(getattr(search, name)))

    return plant


def one_row_each(original):
    return lambda plans, delta: original([replace(plan, max_records_per_person=1) for plan in plans], delta)


def rows_ignored(patch):
    from dpbnn.privacy import ledger

    of_search("composed_epsilon", one_row_each)(patch)
    patch.setattr(ledger, "composed_epsilon", one_row_each(ledger.composed_epsilon))


def the_best_alone(patch):
    def planted(self, of):
        for ledger in self.ledgers:
            ledger.reconcile()
        return Settled(of.plan, of.entries)

    patch.setattr(SearchLedger, "settle", planted)


def one_row_of_a_person(patch):
    original = Permit.spend
    patch.setattr(Permit, "spend", lambda self, mechanism: ROWS * original(self, mechanism))


def shuffled(original):
    def planted(rows, share, groups):
        groups = np.arange(rows) if groups is None else groups
        people = np.random.default_rng().permutation(groups.max() + 1)
        return np.isin(groups, people[: round(share * len(people))])

    return planted


BUGS = [
    Bug("a search by Renyi divergences that ignores rows per person", rows_ignored, fits),
    Bug("a search that claims what its best fit costs", the_best_alone, fits),
    Bug("a choice that hides one row of a person", one_row_of_a_person, choice),
    Bug("scores with masks that a seed tells", seeded_drafts, scores),
    Bug("people put aside by a shuffle", of_search("_people_aside", shuffled), split),
    Bug(
        "rows put aside, not people",
        of_search("_people_aside", lambda _: lambda rows, share, groups: np.random.default_rng().random(rows) < share),
        split,
    ),
]
