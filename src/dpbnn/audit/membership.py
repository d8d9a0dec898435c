"""Whether predictions of a release tell members of the training data from others.

The attacker asks for predictions, and uses the likelihood of the target and the release's uncertainty as signals: a
model that remembers a record is surer of it. The result bounds epsilon only if coins decide who is a member, which is
what the audit of one run is for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu
from torch import Tensor

from dpbnn.audit.one_run import DRAWS, log_likelihoods
from dpbnn.prediction import ClassPrediction
from dpbnn.release.release import Release

__all__ = ["MembershipAudit", "Signal", "audit_membership"]

FALSE_POSITIVES = 0.01


@dataclass(frozen=True)
class Signal:
    """How well one signal tells members from others.

    Args:
        auc: the probability that a member's signal is above another record's; 0.5 tells nothing.
        caught: the share of members found at 1 % false alarms.
    """

    auc: float
    caught: float


@dataclass(frozen=True)
class MembershipAudit:
    """All signals of one release; its guarantee allows `caught` to be at most `most_by_the_guarantee`."""

    members: int
    others: int
    signals: Mapping[str, Signal]
    most_by_the_guarantee: float


def audit_membership(
    release: Release, members: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> MembershipAudit:
    """Attack with records that were trained on, and others like them. The result is as private as the records."""
    of_members, of_others = _signals(release, *members), _signals(release, *others)
    guarantee = release.guarantee
    most = min(1.0, math.exp(min(guarantee.epsilon, 50.0)) * FALSE_POSITIVES + guarantee.delta)
    signals = {name: _compared(of_members[name], of_others[name]) for name in of_members}
    return MembershipAudit(len(members[0]), len(others[0]), signals, most)


def _signals(release: Release, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
    """Signals that are larger for records that the model seems to know."""
    prediction = release.predict(x, num_draws=DRAWS)
    signals = {"likelihood of the target": log_likelihoods(prediction, y)}
    if isinstance(prediction, ClassPrediction):
        uncertainty = {"certainty": prediction.entropy, "agreement of the draws": prediction.mutual_information}
    else:
        uncertainty = {"agreement of the draws": prediction.epistemic_variance.sum(dim=1)}
    return signals | {name: -values.double().numpy() for name, values in uncertainty.items()}


def _compared(members: np.ndarray, others: np.ndarray) -> Signal:
    auc = mannwhitneyu(members, others).statistic / (len(members) * len(others))
    threshold = np.quantile(others, 1 - FALSE_POSITIVES)
    return Signal(float(auc), float((members > threshold).mean()))
