"""How classifiers are trained: by the paper's settings, and by better ones within its budget.

The paper trains for 15 epochs of batches of 256 with clip norm 1.5; noise 1.3, or for DP-SGLD the noise that its
learning rate means (Theorem 1 as corrected: s = B / (sqrt(eta) n C)). MC Dropout takes Adam, without which its rate
learns nothing. The paper does not say how it trains without privacy: here without clipping, at the same rates on the
MLP, and at two fifths of them on the CNN, which collapses at more.

The best settings have large batches, more epochs, tanh and a falling rate. What is tuned of them
(`dpbnn.experiments.tuning`) is a recipe, which makes a setting for data of any size.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

import dpbnn
from dpbnn.experiments.item import Size
from dpbnn.methods import Method

__all__ = [
    "BATCH_SHARE",
    "BEST",
    "DELTA",
    "EPOCHS",
    "METHODS",
    "NETWORKS",
    "Recipe",
    "Setting",
    "falling",
    "langevin_noise",
    "networks_of",
    "paper",
    "three_ways",
    "without_prior",
]

DELTA, EPSILON = 1e-5, 0.894
"""The budget: delta, and epsilon by PLD of the paper's DP-SGLD."""
METHODS = {"sgld": "SGLD", "bbp": "BBP", "mc_dropout": "MC Dropout", "sgd": "SGD"}
NETWORKS = {"mlp": "MLP", "cnn": "CNN"}
PRIORS: dict[str, dpbnn.Prior] = {"Gaussian": dpbnn.Gaussian(0.1), "Laplace": dpbnn.Laplace(0.1), "none": dpbnn.Flat()}
RATE, SAMPLERS_RATE = 0.25, 0.3
"""Learning rates of DP-SGD and DP-BBP, and of DP-SGLD times the number of records (5e-6 for 60,000)."""
BATCH_SHARE, EPOCHS, LEVELS = 2048 / 60_000, 40, 8
"""Shared by all recipes; but for DP-SGLD the rate falls to an eighth in LEVELS equal steps."""
TEMPERATURE = 0.5
"""The temperature of DP-SGLD, whose rate is the one at which the budget's noise is Langevin noise."""


@dataclass(frozen=True)
class Setting:
    """One way to train a classifier of 28 x 28 images; None as `noise_multiplier` is the least within the budget."""

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
    likelihood: ClassVar = dpbnn.Categorical()

    @property
    def steps(self) -> int:
        """The number of steps, rounded down."""
        return int(self.epochs * self.records // self.batch_size)

    @property
    def label(self) -> str:
        """The beginning of a run's key."""
        private = "DP-" if self.is_private else ""
        return f"{self.data}, {NETWORKS[self.network]}, {private}{type(self.method).__name__}"

    def plan(self) -> dpbnn.PrivacyPlan:
        """The plan of a run."""
        size: Any = {"dataset_size": self.records, "batch_size": self.batch_size, "steps": self.steps}
        if not self.is_private:
            return dpbnn.PrivacyPlan.without_privacy(**size)
        how: Any = {"clip_norm": self.clip_norm, "delta": DELTA, "clipping": self.clipping}
        if self.noise_multiplier is None:
            return dpbnn.PrivacyPlan.for_budget(epsilon=EPSILON, **size, **how)
        return dpbnn.PrivacyPlan(noise_multiplier=self.noise_multiplier, **size, **how)

    def model(self) -> nn.Module:
        """A new network, whose weights come from torch's generator."""
        if self.network == "mlp":
            return dpbnn.networks.MLP(784, self.hidden, 10, activation=self.activation, dropout=self.dropout)
        return dpbnn.networks.CNN(activation=self.activation, dropout=self.dropout)

    def to_json(self) -> dict[str, Any]:
        """All fields, the method as text."""
        return {name: repr(value) if name == "method" else value for name, value in vars(self).items()}


def paper(data: str, network: str, method: str, prior: str, is_private: bool, size: Size) -> Setting:
    """The setting that the paper names, private or not."""
    weight_prior, share = PRIORS[prior], 0.4 if network == "cnn" and not is_private else 1.0
    shape: Any = {"records": size.records, "epochs": size.epochs, "hidden": size.hidden, "is_private": is_private}
    plain = Setting(data, network, dpbnn.SGD(RATE * share, weight_prior), noise_multiplier=1.3, **shape)
    if method == "sgld":
        rate = SAMPLERS_RATE * share / size.records
        last = dpbnn.KeepSamples(burn_in=plain.steps - min(100, plain.steps // 2), thin=1)
        sampler = dpbnn.SGLD(rate, weight_prior, temperature=0.5, keep_as=last)
        return replace(plain, method=sampler, noise_multiplier=langevin_noise(rate, plain))
    if method == "bbp":
        return replace(plain, method=dpbnn.BBP(RATE * share, weight_prior))
    if method == "mc_dropout":
        return replace(plain, method=dpbnn.MCDropout(2e-4, weight_prior, optimizer="Adam"), dropout=0.5)
    return plain


def networks_of(size: Size) -> list[str]:
    """Both networks, or the one that two CPU cores train quickly."""
    return list(NETWORKS) if size.is_full else ["mlp"]


def without_prior(rate: float, noise: float | None, size: Size, **more: Any) -> Setting:
    """DP-SGD on MNIST at this rate and noise; for None the noise of DP-SGLD at temperature 1/2 and rate / n."""
    setting = Setting(
        "mnist", networks_of(size)[-1], dpbnn.SGD(rate), size.records, epochs=size.epochs, hidden=size.hidden, **more
    )
    return replace(setting, noise_multiplier=langevin_noise(rate / size.records, setting) if noise is None else noise)


def langevin_noise(rate: float, setting: Setting) -> float:
    """``s = B / (sqrt(eta) n C)``: what makes a DP-SGD step of eta n one of Langevin dynamics at temperature 1/2."""
    return setting.batch_size / (math.sqrt(rate) * setting.records * setting.clip_norm)


@dataclass(frozen=True)
class Recipe:
    """How a network is trained by a method within the budget.

    Args:
        network: "mlp" or "cnn".
        method: of `dpbnn.experiments.settings.METHODS`.
        clip_norm: the clip norm C.
        prior: the scale of the Gaussian prior.
        rate: the learning rate that training begins with; None for DP-SGLD.
        dropout: the share of units that is dropped.
    """

    network: str
    method: str
    clip_norm: float
    prior: float
    rate: float | None = None
    dropout: float = 0.0

    def at(self, data: str, size: Size, records: int | None = None) -> Setting:
        """The setting for so many records, by default all of the size."""
        records = size.records if records is None else records
        plain = Setting(
            data,
            self.network,
            dpbnn.SGD(1.0),
            records=records,
            batch_size=round(BATCH_SHARE * records),
            epochs=EPOCHS * size.epochs / 15,
            clip_norm=self.clip_norm,
            hidden=size.hidden,
            activation="tanh",
            dropout=self.dropout,
        )
        return replace(plain, method=self._method(plain))

    def _method(self, setting: Setting) -> Method[Any]:
        prior = dpbnn.Gaussian(self.prior)
        if self.rate is None:
            noise = setting.plan().noise_at(0)
            rate = 2 * TEMPERATURE * (setting.batch_size / (setting.records * setting.clip_norm * noise)) ** 2
            return dpbnn.SGLD(_rounded_down(rate), prior, temperature=TEMPERATURE)
        rates = falling(self.rate, setting.steps)
        kind = {"bbp": dpbnn.BBP, "mc_dropout": dpbnn.MCDropout, "sgd": dpbnn.SGD}[self.method]
        return kind(rates, prior)


def _rounded_down(rate: float) -> float:
    """The rate rounded down to seven digits: the same on every machine, and with no less noise."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 6)
    return float(f"{math.floor(rate / unit) * unit:.6e}")


def falling(rate: float, steps: int) -> list[tuple[float, int]]:
    """A schedule from the rate to an eighth of it in equal steps, as runs of (value, steps)."""
    each, rest = divmod(steps, LEVELS)
    return [(rate * (1 - level / LEVELS), each + rest * (level == 0)) for level in range(LEVELS)]


BEST = {
    ("mlp", "sgld"): Recipe("mlp", "sgld", 3.0, 0.1),
    ("mlp", "bbp"): Recipe("mlp", "bbp", 4.0, 0.1, 0.25),
    ("mlp", "mc_dropout"): Recipe("mlp", "mc_dropout", 4.0, 0.1, 0.25, 0.05),
    ("mlp", "sgd"): Recipe("mlp", "sgd", 4.0, 0.1, 0.25),
    ("cnn", "sgld"): Recipe("cnn", "sgld", 2.0, 0.2),
    ("cnn", "bbp"): Recipe("cnn", "bbp", 3.0, 0.1, 1.0),
    ("cnn", "mc_dropout"): Recipe("cnn", "mc_dropout", 1.5, 0.2, 1.0, 0.05),
    ("cnn", "sgd"): Recipe("cnn", "sgd", 1.5, 0.1, 2.0),
}
"""The recipes with the least negative log-likelihood in `dpbnn reproduce tuning`."""


def three_ways(data: str, network: str, method: str, prior: str, size: Size) -> dict[str, Setting]:
    """The paper's setting, the best within the budget, and the paper's without privacy."""
    private, plain = (paper(data, network, method, prior, is_private, size) for is_private in (True, False))
    return {"private": private, "best": BEST[network, method].at(data, size), "not_private": plain}
