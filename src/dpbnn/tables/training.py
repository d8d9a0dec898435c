"""From a table of numbers between -1 and 1 to a release: what the estimators and the command line share."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbnn._warn import muted, warn
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.lint import Finding
from dpbnn.methods import METHODS, Method
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from dpbnn.models.networks import MLP
from dpbnn.models.priors import Gaussian
from dpbnn.prediction import RealPrediction
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.purchases import Permit
from dpbnn.privacy.queries import bounds
from dpbnn.release.draft import Draft
from dpbnn.seeds import derived_seed
from dpbnn.tables.settings import NOISE_LEVEL, Chosen, Facts
from dpbnn.tables.terms import FitFolder, Terms
from dpbnn.training.checkpoint import opened
from dpbnn.training.loop import train as take_all_steps
from dpbnn.training.run import prepared

__all__ = ["EXPECTED", "in_units", "train"]

EXPECTED = (
    "A learned noise level under clip norm",
    r"The \d+ kept samples are worth about",
    "The plan.s noise implies temperature",
)
"""Beginnings of warnings that come with all settings for private tables."""
DRAWS_FOR_RESIDUALS = 20
WITHIN_ONE_DEVIATION = 0.6827
"""The share of a Gaussian."""
NOISE_CANDIDATES = [1.02**-k for k in range(350, -1, -1)]
"""Standard deviations up to 1, which no targets from -1 to 1 exceed, down to a thousandth."""
UNIT_NOISE = 1.0
"""Of targets in training: with their own noise, the rate would depend on it."""
RUNS_OF_THE_RATE = 20
NO_FOLDER = FitFolder()


def train(
    X: np.ndarray,
    y: np.ndarray,
    terms: Terms,
    ledger: Ledger,
    *,
    seed: int | None = None,
    folder: FitFolder = NO_FOLDER,
    progress: bool = False,
    findings: Sequence[Finding] = (),
) -> Draft:
    """Train the chosen network, and buy the noise level of targets that are numbers.

    Args:
        X: rows from -1 to 1.
        y: labels, or numbers from -1 to 1.
        terms: what is public, and how to train.
        ledger: opened for these terms.
        seed: for the first weights and the method's random choices.
        folder: from where an interrupted fit continues; the caller removes it.
        progress: whether to show a bar.
        findings: of lint, to be noted in the release.

    Warnings that come with all settings for private tables are muted; the release's settings have them.
    """
    facts, chosen = terms.facts, terms.chosen
    folder.check()  # bounds that were bought are not used by a worker whose fit was taken over meanwhile
    if chosen.caution:
        warn(chosen.caution)
    with muted(*EXPECTED), opened(folder.training, folder.take_over) as checkpoint:
        network, method = _network(X.shape[1], facts, chosen, seed), _method(chosen, facts.rows)
        likelihood = HomoscedasticGaussian(UNIT_NOISE) if facts.is_regression else Categorical()
        run = prepared(network, X, y, method, chosen.plan, likelihood, seed).linted(X, y)
        run = replace(run, findings=(*findings, *run.findings))
        position = run.begin(ledger, checkpoint)
        take_all_steps([position], checkpoint, progress=progress)
        draft = run.draft(position)
        position.save(checkpoint)
    if NOISE_LEVEL not in chosen.purchases:
        return draft
    level = ledger.buy(NOISE_LEVEL, lambda permit: _noise_level(draft, X, y, permit))
    return replace(draft, likelihood=HomoscedasticGaussian(level))


def _noise_level(draft: Draft, X: np.ndarray, y: np.ndarray, permit: Permit) -> float:
    """The noise of the targets around the network: what 68 % of the residuals stay below, bought like a bound."""
    prediction = draft.predict(X, DRAWS_FOR_RESIDUALS)
    assert isinstance(prediction, RealPrediction)
    most = NOISE_CANDIDATES[-1]
    residuals = np.abs(prediction.mean.numpy()[:, 0] - np.asarray(y)[:, 0])
    finite = np.nan_to_num(residuals, nan=most, posinf=most)
    return bounds.quantile(finite, WITHIN_ONE_DEVIATION, permit, NOISE_CANDIDATES)


def _method(chosen: Chosen, rows: int) -> Method[Any]:
    """Samplers average their noise out. The others release where they end, and come to rest on the way."""
    entry, rate = METHODS[chosen.method], chosen.learning_rate
    falling = rate if entry.is_sampler else _falling(rate, chosen.plan.steps)
    return entry.make(falling, rows, prior=Gaussian(chosen.prior_scale))


def _falling(rate: float, steps: int) -> list[tuple[float, int]]:
    """From twice the rate to nothing, with `rate` as the mean."""
    edges = np.linspace(0, steps, min(steps, RUNS_OF_THE_RATE) + 1).round().astype(int)
    return [(rate * (2 - (int(a) + int(b)) / steps), int(b - a)) for a, b in pairwise(edges)]


def _network(features: int, facts: Facts, chosen: Chosen, seed: int | None) -> MLP:
    """A network whose outputs are all zero at first."""
    with drawing_from(Generators.seeded(derived_seed(None) if seed is None else seed)):
        network = MLP(features, chosen.hidden, facts.classes or 1, chosen.activation, chosen.dropout)
    last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    return network


def in_units(prediction: RealPrediction, low: float, high: float) -> RealPrediction:
    """A prediction of targets that were scaled to -1 to 1, in the unit that they had."""
    half, middle = (high - low) / 2, (high + low) / 2
    return replace(prediction, means=prediction.means * half + middle, variances=prediction.variances * half**2)
