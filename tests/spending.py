"""Ledgers for tests of one mechanism, and a watch on all of them."""

from dataclasses import dataclass, field

import numpy as np

from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.purchases import Purchases
from dpbnn.privacy.queries import bounds, selection


def permitted(epsilon, draw):
    """What a mechanism makes with a permit of this epsilon."""
    return Purchases({"a test": epsilon}).buy("a test", draw)


def bought(purchase, values, most=1):
    """The bounds that a purchase makes of a table."""
    level = {"clip_norm": 1.0, "noise_multiplier": 5.0, "delta": 1e-5, "max_records_per_person": most}
    plan = PrivacyPlan(1000, 100, 5, pure_epsilons=tuple(purchase.purchases.values()), **level)
    return purchase.bounds_of(values, Ledger.open(plan, purchase.purchases))


@dataclass
class Watch:
    """Every call of a mechanism without delta: for what, at which epsilon, for how many rows of a person, on what."""

    calls: list = field(default_factory=list)

    def __call__(self, patch, instead=None):
        quantile, noisy_maximum = bounds.quantile, selection.noisy_maximum

        def watched_quantile(values, share, permit, candidates):
            self.calls.append((permit, np.array(values)))
            if instead is None:
                return quantile(values, share, permit, candidates)
            permit.spend("watched")
            return instead(share)

        def watched_maximum(scores, permit):
            self.calls.append((permit, np.array(scores)))
            return noisy_maximum(scores, permit)

        patch.setattr(bounds, "quantile", watched_quantile)
        patch.setattr(selection, "noisy_maximum", watched_maximum)
        return self

    @property
    def purposes(self):
        return [permit.purpose for permit, _ in self.calls]

    @property
    def epsilons(self):
        return [permit.epsilon for permit, _ in self.calls]
