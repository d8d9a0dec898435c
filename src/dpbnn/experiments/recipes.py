"""The best settings that were found within the paper's budget: large batches, more epochs, tanh, a falling rate.

What is tuned of them (`dpbnn.experiments.tuning` says on what) is a recipe; it makes a setting for data of any size.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import dpbnn
from dpbnn.experiments.item import Size
from dpbnn.experiments.settings import METHODS, NETWORKS, Setting, paper
from dpbnn.experiments.training import epsilons, figures
from dpbnn.methods import Method

__all__ = ["BEST", "WAYS", "Recipe", "best", "falling", "rows_in_three_ways"]

BATCH_SHARE, EPOCHS, LEVELS = 2048 / 60_000, 40, 8
"""Of all recipes; the rate falls in so many equal steps to an eighth, but for DP-SGLD."""
TEMPERATURE = 0.5
"""Of DP-SGLD: its rate is the one at which the noise of the budget is Langevin noise."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained by a method within the budget.

    Args:
        network: "mlp" or "cnn".
        method: of `dpbnn.experiments.settings.METHODS`.
        clip_norm: C.
        prior: the scale of a Gaussian one.
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
        """For so many records, by default all."""
        records = size.records if records is None else records
        plain = Setting(
            data,
            self.network,
            dpbnn.SGD(1.0),
            records,
            round(BATCH_SHARE * records),
            EPOCHS * size.epochs / 15,
            self.clip_norm,
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
    """To seven digits: the same on every machine, and with no less noise."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 6)
    return float(f"{math.floor(rate / unit) * unit:.6e}")


def falling(rate: float, steps: int) -> list[tuple[float, int]]:
    """From the rate to an eighth of it in equal steps, as runs of (value, steps)."""
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
"""Those with the least negative log-likelihood in `dpbnn reproduce tuning`."""


def best(data: str, network: str, method: str, size: Size) -> Setting:
    """The best that was found within the budget, private."""
    return BEST[network, method].at(data, size)


WAYS = {"private": "private, paper's settings", "best": "private, best settings", "not_private": "not private"}


def rows_in_three_ways(
    data: str, priors: Mapping[str, str], names: Iterable[str], kind: str, size: Size
) -> list[dict[str, Any]]:
    """A row for each network and method, with its figures of this kind by way and name."""
    rows = []
    for network, method in product(NETWORKS, METHODS):
        dp, plain = (paper(data, network, method, priors[method], is_private, size) for is_private in (True, False))
        settings = dict(zip(WAYS, (dp, best(data, network, method, size), plain), strict=True))
        ours = {way: {name: figures(name, setting, size, kind) for name in names} for way, setting in settings.items()}
        rows.append(
            {
                "network": network,
                "method": method,
                "settings": {way: setting.to_json() for way, setting in settings.items()},
                "seeds": list(range(size.seeds)),
                "epsilon": {way: epsilons(settings[way]) for way in ("private", "best")},
                "ours": ours,
            }
        )
    return rows
