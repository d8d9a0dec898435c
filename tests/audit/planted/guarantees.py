"""Bugs of what is promised in words."""

import math
from dataclasses import replace

import numpy as np
import pytest

import dpbnn
from dpbnn.privacy import guarantee
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.training.steps import Work
from tests.audit.planted.common import PLAN, Bug, fitted


def stated():
    """Contract: a guarantee states no less than its plan costs."""
    for noise in (0.9, 1.1, 3.7, 25.0):
        plan = replace(PLAN, noise_multiplier=noise)
        found = PrivacyGuarantee.for_plan(plan)
        pairs = [(found.epsilon, plan.epsilon())]
        pairs += [(epsilon, plan.epsilon(name)) for name, epsilon in found.epsilon_by_accountant.items()]
        pairs += [(found.epsilon_replace_one, plan.epsilon(adjacency="replace_one"))]
        if any(said < costs for said, costs in pairs):
            return True
    return False


def void(folder):
    """Contract: a run whose noise is known, or that shows values without noise, promises nothing, also when loaded."""
    for number, unsafe in enumerate(({"unsafe_seed": 1}, {"unsafe_diagnostics": True})):
        release = fitted(**unsafe)
        release.save(folder / str(number))
        loaded = dpbnn.load(folder / str(number), release.model)
        for promise in (release.guarantee, loaded.guarantee):
            if promise.holds or "no privacy guarantee" not in str(promise):
                return True
    return False


def adjacency():
    """Contract: where rows are counted, their number is said to be public, and people are blanked out; else neither."""
    pytest.importorskip("sklearn")
    from dpbnn.sklearn import DPBayesClassifier

    X, y = np.random.default_rng(0).uniform(0, 1, (60, 2)), np.arange(60) % 2
    found = [
        DPBayesClassifier(bounds=(0, 1), method="sgd", epochs=3, dataset_size=size, classes=[0, 1]).fit(X, y).guarantee_
        for size in (None, 60)
    ]
    counted = "the number of rows is public: it was taken from the data"
    said = [(claim.adjacency, counted in claim.assumptions) for claim in found]
    return said != [("zero_out", True), ("add_or_remove", False)]


def rounded_down(patch):
    patch.setattr(
        guarantee, "rounded_up", lambda epsilon: math.floor(epsilon * 1e4) / 1e4 if math.isfinite(epsilon) else epsilon
    )


def reasons_forgotten(patch):
    patch.setattr(Work, "voided_by", ())


def as_if(dataset_size):
    """Circumstances that are stated as if this had been given."""

    def plant(patch):
        from dpbnn.sklearn.estimator import DPBayesEstimator

        original = DPBayesEstimator._circumstances

        def planted(self, assumptions=()):
            other = self._snapshot()
            other.dataset_size = dataset_size
            return original(other, assumptions)

        patch.setattr(DPBayesEstimator, "_circumstances", planted)

    return plant


BUGS = [
    Bug("epsilon rounded down", rounded_down, stated),
    Bug(
        "the guarantee of a void run holds",
        lambda p: p.setattr(PrivacyGuarantee, "holds", property(lambda self: self.plan.is_private)),
        void,
    ),
    Bug("reasons that void a guarantee forgotten", reasons_forgotten, void),
    Bug("people blanked out where their number is private", as_if(None), adjacency),
    Bug("people added and removed where they were counted", as_if(60), adjacency),
]
