"""A draft: a release before its guarantee, trained and paid for, of which nothing is public yet.

`dpbnn.fit` makes the release at once. Estimators and searches first buy more from the same records (the noise level of
targets, the choice of a search) with the same ledger. The guarantee is made last and covers all of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from dpbnn.models.likelihoods import Likelihood
from dpbnn.posterior import Posterior
from dpbnn.prediction import Prediction
from dpbnn.prediction.predict import predict
from dpbnn.privacy.guarantee import Circumstances, PrivacyGuarantee
from dpbnn.privacy.ledger import Ledger
from dpbnn.release.release import Release, objective_of

__all__ = ["Draft"]


@dataclass(eq=False)
class Draft:
    """The posterior of a run, and the ledger that has paid for it; it holds no record.

    The guarantee will name `random_source`, and `voided_by` as the reasons why it does not hold.

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
        """Predict as the release will, with secret draws: for purchases that look at private records."""
        objective = objective_of(self.model, self.likelihood, self.posterior)
        return predict(objective, self.posterior, x, num_draws, seed=None)

    def release(self, circumstances: Circumstances | None = None, settings: Mapping[str, Any] | None = None) -> Release:
        """The release, if the ledger is in order; its guarantee states all of `circumstances`."""
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
