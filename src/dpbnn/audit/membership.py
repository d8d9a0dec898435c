"""Whether a release's predictions tell members of the training data from others, by any of its own signals.

The attacker asks for predictions, and has the release's own uncertainty as a signal beside the likelihood of the
target: a model that remembers a record is surer of it. What he finds is reported as it is; it bounds nothing unless
membership was decided by coins, for which there is the audit of one run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
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
        auc: the probability that a member's is above another's: 0.5 tells nothing.
        caught: members found at 1 % false alarms; by the guarantee at most e^epsilon times that, plus delta.
    """

    auc: float
    caught: float


@dataclass(frozen=True)
class MembershipAudit:
    """All signals of one release, on so many members and others."""

    members: int
    others: int
    signals: Mapping[str, Signal]
    most_by_the_guarantee: float


def audit_membership(
    release: Release, members: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> MembershipAudit:
    """Attack with records that were trained on, and others like them. The result is as private as they are."""
    own, theirs = _signals(release, *members), _signals(release, *others)
    guarantee = release.guarantee
    most = min(1.0, float(np.exp(min(guarantee.epsilon, 50.0))) * FALSE_POSITIVES + guarantee.delta)
    signals = {name: _compared(own[name], theirs[name]) for name in own}
    return MembershipAudit(len(members[0]), len(others[0]), signals, most)


def _signals(release: Release, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
    """Each larger for records that the model seems to know."""
    likelihood = {"likelihood of the target": log_likelihoods(release, x, y)}
    found = release.predict(x, num_draws=DRAWS)
    if isinstance(found, ClassPrediction):
        doubts = {"certainty": found.entropy, "agreement of the draws": found.mutual_information}
    else:
        doubts = {"agreement of the draws": found.epistemic_variance.sum(dim=1)}
    return likelihood | {name: -values.double().numpy() for name, values in doubts.items()}


def _compared(members: np.ndarray, others: np.ndarray) -> Signal:
    from scipy.stats import mannwhitneyu

    auc = mannwhitneyu(members, others).statistic / (len(members) * len(others))
    threshold = np.quantile(others, 1 - FALSE_POSITIVES)
    return Signal(float(auc), float((members > threshold).mean()))
