"""A release before its guarantee: trained and paid for, and nothing of it given away yet.

`dpbnn.fit` makes the release at once. Whoever has something left to buy from the same records (the noise level of
targets, the choice of a search) does so in between, with the same ledger; the guarantee is made last, of all of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from dpbnn.clipping.objective import Objective
from dpbnn.models.likelihoods import Likelihood
from dpbnn.models.replica import replica
from dpbnn.posterior import Posterior
from dpbnn.prediction import Prediction
from dpbnn.prediction.predict import predict
from dpbnn.privacy.guarantee import Circumstances, PrivacyGuarantee
from dpbnn.privacy.ledger import Ledger
from dpbnn.release.release import Release

__all__ = ["Draft"]


@dataclass(eq=False)
class Draft:
    """What a run has learned, and the ledger that has paid for it; it holds no record.

    `random_source` and `voided_by` are what the guarantee will say of how the run drew.

    Guarantees:
        Nothing is released from a ledger that is not in order.
    """

    ledger: Ledger
    posterior: Posterior
    model: nn.Module
    likelihood: Likelihood
    random_source: str
    voided_by: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, float], ...] = ()
    diagnostics: tuple[Mapping[str, float], ...] = ()

    def predict(self, x: Any, num_draws: int) -> Prediction:
        """As the release will, with draws that nobody can know: for whatever is bought from private records."""
        own = tuple(name for name in self.posterior.names if name.startswith("likelihood."))
        return predict(Objective(replica(self.model), self.likelihood, own), self.posterior, x, num_draws, seed=None)

    def release(self, circumstances: Circumstances | None = None, settings: Mapping[str, Any] | None = None) -> Release:
        """The release, if the ledger is in order, with a guarantee that says all of `circumstances`."""
        guarantee = PrivacyGuarantee.for_ledger(
            self.ledger, circumstances or Circumstances(), random_source=self.random_source, voided_by=self.voided_by
        )
        spent = {"ledger": [asdict(entry) for entry in self.ledger.settle().entries]}
        return Release(
            self.posterior,
            guarantee,
            self.model,
            self.likelihood,
            {**self.settings, **spent, **(settings or {})},
            self.history,
            self.diagnostics,
        )
