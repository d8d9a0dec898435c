"""How the paper's classifiers are trained, by its own settings; `dpbnn.experiments.recipes` has better ones.

The paper trains for 15 epochs of batches of 256 with clip norm 1.5; noise 1.3, or for DP-SGLD the noise that its
learning rate means (Theorem 1 as corrected: s = B / (sqrt(eta) n C)). MC Dropout takes Adam, without which its rate
learns nothing. The paper does not say how it trains without privacy: here without clipping, at the same rates on the
MLP, and at two fifths of them on the CNN, which collapses at more.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

import dpbnn
from dpbnn.experiments.item import Size
from dpbnn.methods import Method

__all__ = ["DELTA", "EPSILON", "METHODS", "NETWORKS", "PRIORS", "Setting", "langevin_noise", "paper"]

DELTA, EPSILON = 1e-5, 0.894
"""The budget: epsilon by PLD of the paper's DP-SGLD."""
METHODS = {"sgld": "SGLD", "bbp": "BBP", "mc_dropout": "MC Dropout", "sgd": "SGD"}
NETWORKS = {"mlp": "MLP", "cnn": "CNN"}
PRIORS: dict[str, dpbnn.Prior] = {"Gaussian": dpbnn.Gaussian(0.1), "Laplace": dpbnn.Laplace(0.1), "none": dpbnn.Flat()}
RATE, SAMPLERS_RATE = 0.25, 0.3
"""Of DP-SGD and DP-BBP; of DP-SGLD, times the number of records: 5e-6 for 60,000."""


@dataclass(frozen=True)
class Setting:
    """One way to train a classifier of 28 x 28 images; `noise_multiplier` None: the least within the budget."""

    data: str
    network: str
    method: Method[Any]
    records: int = 60_000
    batch_size: int = 256
    epochs: float = 15
    clip_norm: float = 1.5
    clipping: str = "flat"
    noise_multiplier: float | None = None
    is_private: bool = True
    hidden: tuple[int, ...] = (1200, 1200)
    activation: str = "relu"
    dropout: float = 0.0

    @property
    def steps(self) -> int:
        """Rounded down."""
        return int(self.epochs * self.records // self.batch_size)

    @property
    def label(self) -> str:
        """For a progress bar."""
        private = "DP-" if self.is_private else ""
        return f"{self.data}, {NETWORKS[self.network]}, {private}{type(self.method).__name__}"

    def plan(self) -> dpbnn.PrivacyPlan:
        """What is charged."""
        size: Any = {"dataset_size": self.records, "batch_size": self.batch_size, "steps": self.steps}
        if not self.is_private:
            return dpbnn.PrivacyPlan.without_privacy(**size)
        how: Any = {"clip_norm": self.clip_norm, "delta": DELTA, "clipping": self.clipping}
        if self.noise_multiplier is None:
            return dpbnn.PrivacyPlan.for_budget(epsilon=EPSILON, **size, **how)
        return dpbnn.PrivacyPlan(noise_multiplier=self.noise_multiplier, **size, **how)

    def model(self) -> nn.Module:
        """With weights as torch's generator has them."""
        if self.network == "mlp":
            return dpbnn.networks.MLP(784, self.hidden, 10, activation=self.activation, dropout=self.dropout)
        return dpbnn.networks.CNN(activation=self.activation, dropout=self.dropout)

    def to_json(self) -> dict[str, Any]:
        """All of it; the method as text."""
        return {name: repr(value) if name == "method" else value for name, value in vars(self).items()}


def paper(data: str, network: str, method: str, prior: str, is_private: bool, size: Size) -> Setting:
    """As the paper has it."""
    own, share = PRIORS[prior], 0.4 if network == "cnn" and not is_private else 1.0
    shape: Any = {"records": size.records, "epochs": size.epochs, "hidden": size.hidden, "is_private": is_private}
    plain = Setting(data, network, dpbnn.SGD(RATE * share, own), noise_multiplier=1.3, **shape)
    if method == "sgld":
        rate = SAMPLERS_RATE * share / size.records
        last = dpbnn.KeepSamples(burn_in=plain.steps - min(100, plain.steps // 2), thin=1)
        sampler = dpbnn.SGLD(rate, own, temperature=0.5, keep_as=last)
        return replace(plain, method=sampler, noise_multiplier=langevin_noise(rate, plain))
    if method == "bbp":
        return replace(plain, method=dpbnn.BBP(RATE * share, own))
    if method == "mc_dropout":
        return replace(plain, method=dpbnn.MCDropout(2e-4, own, optimizer="Adam"), dropout=0.5)
    return plain


def langevin_noise(rate: float, setting: Setting) -> float:
    """``s = B / (sqrt(eta) n C)``: what makes a DP-SGD step of eta n one of Langevin dynamics at temperature 1/2."""
    return setting.batch_size / (math.sqrt(rate) * setting.records * setting.clip_norm)
