"""A whole training run with canaries, each in the data by a coin: who was in is guessed from the release alone.

Steinke, Nasr and Jagielski 2023: were the run (epsilon, delta)-private, guesses could not be right so often. One run is
enough, as each canary has its own coin. The bound is loose by nature: epsilon is accounted for all steps of the run,
and a release shows far less than they do.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpbnn.audit.bounds import epsilon_of_guesses, probability_of_guesses
from dpbnn.audit.checks import Check
from dpbnn.methods import METHODS, Method
from dpbnn.models.likelihoods import Categorical, Likelihood
from dpbnn.models.networks import MLP
from dpbnn.prediction import ClassPrediction, Prediction
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.fit import fit

__all__ = ["OneRunAudit", "audit_method", "audit_training", "log_likelihoods"]

SHARE_GUESSED = 0.2
"""The share of canaries that are guessed, those with the highest and the lowest scores; fixed in advance."""
CANARIES, LOUDNESS = 400, 10.0
DRAWS = 30


@dataclass(frozen=True)
class OneRunAudit:
    """What an attacker guessed from one release.

    Args:
        canaries: how many there were, each in the data by a coin.
        guesses: how many of them were guessed.
        right: how many guesses were right.
        claimed_epsilon: the plan's.
        epsilon: a lower bound on the real one, at the confidence.
        check: whether so many right guesses are possible at the claimed epsilon.
    """

    canaries: int
    guesses: int
    right: int
    claimed_epsilon: float
    epsilon: float
    check: Check


def audit_training(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    method: Method[Any],
    plan: PrivacyPlan,
    likelihood: Likelihood,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Train on canaries ``(x, y)``, each of which is in the data by a coin, and guess which were.

    Guarantees:
        Guesses show an epsilon above the true one with a probability of at most ``1 - confidence``.
    """
    inside = np.random.default_rng().random(len(x)) < 0.5
    there = torch.from_numpy(inside)
    release = fit(model, x[there], y[there], method=method, plan=plan, likelihood=likelihood, progress=False)
    order = np.argsort(log_likelihoods(release.predict(x, num_draws=DRAWS), y), kind="stable")
    each = max(1, round(len(x) * SHARE_GUESSED / 2))
    right = int(inside[order[-each:]].sum() + (~inside[order[:each]]).sum())
    epsilon = epsilon_of_guesses(right, 2 * each, len(x), plan.delta, confidence)
    claimed = plan.epsilon()
    chance = probability_of_guesses(right, 2 * each, len(x), claimed, plan.delta)
    check = Check("canaries are guessed no better than the claimed epsilon allows", min(1.0, chance))
    return OneRunAudit(len(x), 2 * each, right, claimed, epsilon, check)


def audit_method(name: str, plan: PrivacyPlan, canaries: int = CANARIES, confidence: float = 0.95) -> OneRunAudit:
    """`audit_training` of a registered method, with the loudest canaries: each has its own input."""
    x, y = LOUDNESS * torch.eye(canaries), torch.randint(2, (canaries,))
    entry = METHODS[name]
    model = MLP(canaries, (32,) if entry.has_dropout else (), 2, "tanh", 0.1 if entry.has_dropout else 0.0)
    method = entry.make(1.0, plan.dataset_size)
    return audit_training(model, x, y, method=method, plan=plan, likelihood=Categorical(), confidence=confidence)


def log_likelihoods(prediction: Prediction, y: Tensor) -> np.ndarray:
    """The log-likelihood of each record's target under a prediction, up to a constant."""
    if isinstance(prediction, ClassPrediction):
        return np.log(prediction.probabilities.double().numpy()[np.arange(len(y)), y.numpy()] + 1e-12)
    variance = (prediction.aleatoric_variance + prediction.epistemic_variance).double()
    return -((y.double() - prediction.mean.double()) ** 2 / variance + variance.log()).sum(dim=1).numpy() / 2
