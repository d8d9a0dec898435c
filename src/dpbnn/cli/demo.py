"""`dpbnn demo`: a small private model from data that ships with scikit-learn, in a few seconds and without a network.

Handwritten digits, 8 x 8 pixels; every fifth is kept aside for measuring. The data is public, so its settings could be
tuned and its accuracy shown; on private data both would be outside the guarantee.
"""

import json
import textwrap
from typing import Any

import dpbnn
from dpbnn.cli.options import AsJson, show

__all__ = ["as_text", "demo", "run_demo"]

EPSILON, DELTA = 2.0, 1e-4
BATCH_SIZE, STEPS, CLIP_NORM = 720, 120, 0.25
PRIVATE_RATE, PLAIN_RATE = 4.0, 0.5
WHITEST = 16.0
"""A public constant: what the data's format allows, not what was seen in it."""


def demo(as_json: AsJson = False) -> None:
    """Train a small private network on public digits and read its guarantee."""
    result = run_demo()
    show(as_json, result | {"guarantee": json.loads(result["guarantee"].to_json())}, as_text(result))


def run_demo() -> dict[str, Any]:
    """Train with and without privacy; how right and how sure it is on the digits kept aside, and the guarantee."""
    X, y, aside = _digits()
    size = int((~aside).sum())
    shape: Any = {"dataset_size": size, "batch_size": BATCH_SIZE, "steps": STEPS}
    plan = dpbnn.PrivacyPlan.for_budget(epsilon=EPSILON, delta=DELTA, clip_norm=CLIP_NORM, **shape)
    runs = [(plan, PRIVATE_RATE), (dpbnn.PrivacyPlan.without_privacy(**shape), PLAIN_RATE)]
    releases = [_train(X[~aside], y[~aside], plan, rate) for plan, rate in runs]
    predictions: Any = [release.predict(X[aside]) for release in releases]
    private, plain = predictions
    right = (private.labels.numpy() == y[aside])[private.entropy.argsort().numpy()]
    tenth = len(right) // 10
    return {
        "digits": {"trained_on": size, "measured_on": int(aside.sum())},
        "accuracy": float(right.mean()),
        "accuracy_of_the_surest_half": float(right[: len(right) // 2].mean()),
        "accuracy_of_the_least_sure_tenth": float(right[-tenth:].mean()),
        "accuracy_without_privacy": float((plain.labels.numpy() == y[aside]).mean()),
        "guarantee": releases[0].guarantee,
    }


def as_text(result: dict[str, Any]) -> str:
    """What the demo prints."""
    digits = result["digits"]
    return (
        f"A small Bayesian network learned from {digits['trained_on']} handwritten digits. Of "
        f"{digits['measured_on']} others it names {result['accuracy']:.1%} correctly (trained without privacy: "
        f"{result['accuracy_without_privacy']:.1%}).\n"
        f"It knows what it does not know: of the half that it is surest of {result['accuracy_of_the_surest_half']:.1%} "
        f"are right, of the tenth that it is least sure of {result['accuracy_of_the_least_sure_tenth']:.1%}.\n\n"
        f"{textwrap.fill(str(result['guarantee']), 100)}"
    )


def _digits() -> tuple[Any, Any, Any]:
    import numpy as np

    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise dpbnn.DpbnnError("The demo needs scikit-learn; run pip install 'dpbnn[sklearn]'.") from error
    X, y = load_digits(return_X_y=True)
    return X / WHITEST, y, np.arange(len(X)) % 5 == 4


def _train(X: Any, y: Any, plan: "dpbnn.PrivacyPlan", learning_rate: float) -> "dpbnn.Release":
    import torch

    torch.manual_seed(0)
    network = dpbnn.networks.MLP(64, [64], 10, activation="tanh")
    return dpbnn.fit(network, X, y, method=dpbnn.BBP(learning_rate), plan=plan, likelihood=dpbnn.Categorical())
