"""From a table of numbers between -1 and 1 to a release: what the estimators and the command line share."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbnn.choosing import Chosen, Facts
from dpbnn.likelihoods import Categorical, HomoscedasticGaussian, Likelihood
from dpbnn.methods import BBP, SGD, SGLD, MCDropout, Method
from dpbnn.networks import MLP
from dpbnn.prediction import RealPrediction
from dpbnn.priors import Gaussian
from dpbnn.privacy.bounds import quantile
from dpbnn.release import Release
from dpbnn.training import fit
from dpbnn.types import DpbnnWarning

__all__ = ["in_units", "train"]

EXPECTED = (
    "A learned noise level under clip norm",
    r"The \d+ kept samples are worth about",
    "The plan.s noise implies temperature",
)
"""Beginnings of warnings."""
SHARE, QUANTILE_OF_A_GAUSSIAN = 0.8, 1.2816
DRAWS_FOR_RESIDUALS = 20
LARGEST_RESIDUAL = 2.0
"""Of targets from -1 to 1."""
NOISE_CANDIDATES = [LARGEST_RESIDUAL * 1.02**-k for k in range(400, -1, -1)]


def train(X: Any, y: Any, facts: Facts, chosen: Chosen, assumptions: Sequence[str] = (), **how: Any) -> Release:
    """Fit the chosen network; `how` goes to `dpbnn.fit`, and `assumptions` into the guarantee.

    What is so with all settings that suit a private table is not said at every fit; it is in the release's settings.
    """
    with warnings.catch_warnings():
        for text in EXPECTED:
            warnings.filterwarnings("ignore", text, DpbnnWarning)
        release = fit(
            _network(facts, chosen, how.get("seed")),
            X,
            y,
            method=_method(chosen, facts.rows),
            plan=chosen.plan,
            likelihood=_likelihood(facts),
            **how,
        )
    if chosen.noise_epsilon is not None:
        release = _with_noise_level(release, X, y, chosen.noise_epsilon)
    guarantee = release.guarantee
    assumed = (*guarantee.assumptions, *assumptions)
    return dataclasses.replace(release, guarantee=dataclasses.replace(guarantee, assumptions=assumed))


def _likelihood(facts: Facts) -> Likelihood:
    """For numbers one of unit noise, with which the rate does not depend on how noisy they are."""
    return HomoscedasticGaussian(1.0) if facts.is_regression else Categorical()


def _with_noise_level(release: Release, X: Any, y: Any, epsilon: float) -> Release:
    """The noise of the targets around the network: what four of five residuals stay below, bought like a bound.

    std = quantile_0.8 |y - f(x)| / 1.2816, as for a Gaussian
    """
    prediction = release.predict(X, num_draws=DRAWS_FOR_RESIDUALS)
    assert isinstance(prediction, RealPrediction)
    residuals = np.abs(prediction.mean.numpy()[:, 0] - np.asarray(y)[:, 0])
    found = quantile(np.nan_to_num(residuals, nan=LARGEST_RESIDUAL), SHARE, epsilon, NOISE_CANDIDATES)
    return dataclasses.replace(release, likelihood=HomoscedasticGaussian(found / QUANTILE_OF_A_GAUSSIAN))


def _method(chosen: Chosen, rows: int) -> Method[Any]:
    rate, prior = chosen.learning_rate, Gaussian(chosen.prior_scale)
    if chosen.method == "sgld":
        return SGLD(rate / rows, prior)
    return {"bbp": BBP, "mc_dropout": MCDropout, "sgd": SGD}[chosen.method](rate, prior)


def _network(facts: Facts, chosen: Chosen, seed: int | None) -> MLP:
    """All outputs are zero at first: nothing is believed before anything is seen."""
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        network = MLP(facts.features, chosen.hidden, facts.outputs, chosen.activation, chosen.dropout)
    last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    return network


def in_units(prediction: RealPrediction, low: float, high: float) -> RealPrediction:
    """A prediction of targets that were scaled to -1 to 1, in the unit that they had."""
    half, middle = (high - low) / 2, (high + low) / 2
    return dataclasses.replace(
        prediction, means=prediction.means * half + middle, variances=prediction.variances * half**2
    )
