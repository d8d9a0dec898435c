"""From a table of numbers between -1 and 1 to a release: what the estimators and the command line share."""

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbnn.choosing import Chosen, Facts
from dpbnn.generators import Generators, drawing_from
from dpbnn.likelihoods import Categorical, HomoscedasticGaussian, Likelihood
from dpbnn.methods import BBP, SGD, SGLD, MCDropout, Method
from dpbnn.networks import MLP
from dpbnn.own_draws import derived_seed
from dpbnn.prediction import RealPrediction
from dpbnn.priors import Gaussian
from dpbnn.privacy.bounds import quantile
from dpbnn.release import Release
from dpbnn.training import fit
from dpbnn.types import DpbnnError, DpbnnWarning

__all__ = ["EXPECTED", "in_units", "kept_in", "train"]

EXPECTED = (
    "A learned noise level under clip norm",
    r"The \d+ kept samples are worth about",
    "The plan.s noise implies temperature",
)
"""Beginnings of warnings."""
DRAWS_FOR_RESIDUALS = 20
WITHIN_ONE_DEVIATION = 0.6827
"""Of a Gaussian."""
NOISE_CANDIDATES = [1.02**-k for k in range(350, -1, -1)]
"""Standard deviations up to 1, which no targets from -1 to 1 exceed, down to a thousandth."""
RUNS_OF_THE_RATE = 20


def train(
    X: Any,
    y: Any,
    facts: Facts,
    chosen: Chosen,
    assumptions: Sequence[str] = (),
    *,
    is_counted: bool,
    noise_file: Path | None = None,
    **how: Any,
) -> Release:
    """Fit the chosen network; `how` goes to `dpbnn.fit`, and `assumptions` into the guarantee.

    Where rows were counted (`is_counted`), their number is public, and neighbours are blanked out rather than removed.

    A noise level that was bought is kept in `noise_file`, and not bought again.

    What is so with all settings that suit a private table is not said at every fit; it is in the release's settings.
    """
    if chosen.caution:
        warnings.warn(chosen.caution, DpbnnWarning, stacklevel=3)
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
    epsilon = chosen.noise_epsilon
    if epsilon is not None:
        level = kept_in(noise_file, lambda: _noise_level(release, X, y, epsilon))
        release = dataclasses.replace(release, likelihood=HomoscedasticGaussian(level))
    guarantee = release.guarantee
    further: Any = {"assumptions": (*guarantee.assumptions, *assumptions)}
    if is_counted:
        further["adjacency"] = "zero_out"
    return dataclasses.replace(release, guarantee=dataclasses.replace(guarantee, **further))


def _likelihood(facts: Facts) -> Likelihood:
    """For numbers one of unit noise, with which the rate does not depend on how noisy they are."""
    return HomoscedasticGaussian(1.0) if facts.is_regression else Categorical()


def kept_in(file: Path | None, bought: Callable[[], Any]) -> Any:
    """What was bought, from the file where it is already; nothing that is paid for once is drawn twice."""
    if file is not None and file.is_file():
        try:
            return json.loads(file.read_text())
        except ValueError as error:
            raise DpbnnError(
                f"{file} is damaged; delete the unfinished run (what it has released stays spent)."
            ) from error
    found = bought()
    if file is not None:
        fresh = file.with_suffix(".new")
        with fresh.open("w") as writing:
            json.dump(found, writing)
            writing.flush()
            os.fsync(writing.fileno())
        fresh.replace(file)
    return found


def _noise_level(release: Release, X: Any, y: Any, epsilon: float) -> float:
    """The noise of the targets around the network: what 68 % of the residuals stay below, bought like a bound."""
    prediction = release.predict(X, num_draws=DRAWS_FOR_RESIDUALS)
    assert isinstance(prediction, RealPrediction)
    most = NOISE_CANDIDATES[-1]
    residuals = np.abs(prediction.mean.numpy()[:, 0] - np.asarray(y)[:, 0])
    finite = np.nan_to_num(residuals, nan=most, posinf=most)
    return quantile(finite, WITHIN_ONE_DEVIATION, epsilon, NOISE_CANDIDATES)


def _method(chosen: Chosen, rows: int) -> Method[Any]:
    """Samples of `sgld` average its noise out. The others release where they end, and come to rest on the way."""
    rate, prior = chosen.learning_rate, Gaussian(chosen.prior_scale)
    if chosen.method == "sgld":
        return SGLD(rate / rows, prior)
    falling = _falling(rate, chosen.plan.steps)
    return {"bbp": BBP, "mc_dropout": MCDropout, "sgd": SGD}[chosen.method](falling, prior)


def _falling(rate: float, steps: int) -> list[tuple[float, int]]:
    """From twice the rate to nothing, with `rate` as the mean."""
    edges = np.linspace(0, steps, min(steps, RUNS_OF_THE_RATE) + 1).round().astype(int)
    return [(rate * (2 - (int(a) + int(b)) / steps), int(b - a)) for a, b in pairwise(edges)]


def _network(facts: Facts, chosen: Chosen, seed: int | None) -> MLP:
    """All outputs are zero at first: nothing is believed before anything is seen."""
    with drawing_from(Generators.seeded(derived_seed(None) if seed is None else seed)):
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
