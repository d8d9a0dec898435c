"""How a gradient becomes a step: plain descent, momentum, or any optimizer of `torch.optim`.

>>> import torch
>>> weights = {"w": torch.ones(2)}
>>> descent = Descent(learning_rate=0.5)
>>> descent.step(descent.start(weights), weights, [Term({"w": torch.ones(2)}, divisor=2)], step=0)
>>> weights["w"].tolist()
[0.75, 0.75]
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpbnn import _validate
from dpbnn.device.flat import joined
from dpbnn.errors import DpbnnError
from dpbnn.models.priors import Flat, Gaussian, Prior
from dpbnn.privacy import temperature as langevin
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import Runs, Schedule, as_schedule, combined, runs_of, value_at
from dpbnn.types import Weights

__all__ = ["Descent", "Term", "as_rate", "implied_temperature", "of_network", "plain_schedule", "prior_term"]

UNUSABLE = {
    "LBFGS": "it evaluates the loss again within a step, which no plan accounts for",
    "SparseAdam": "released gradients are dense",
}
SMALLEST_RATE, LARGEST_RATE = 1e-30, 1e15


@dataclass(frozen=True)
class Term:
    """A part of the gradient: `gradients` over `divisor`, times `factors` if given; zero where no name is given."""

    gradients: Mapping[str, Tensor]
    divisor: float
    factors: Mapping[str, Tensor] | None = None

    def add_to(self, totals: Weights, scale: float) -> None:
        """Add `scale` times the term, in place."""
        if not self.gradients:
            return
        parts = [totals, self.gradients] if self.factors is None else [totals, self.gradients, self.factors]
        for total, gradient, *factors in joined(*([part[name] for name in sorted(self.gradients)] for part in parts)):
            if factors:
                total.addcmul_(gradient, *factors, value=scale / self.divisor)
            else:
                total.add_(gradient, alpha=scale / self.divisor)


@dataclass(frozen=True)
class Descent:
    """The settings of a descent. It has no state: the optimizer that `start` returns remembers earlier steps."""

    learning_rate: Schedule
    momentum: float = 0.0
    optimizer: str | type[Optimizer] = "SGD"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule("learning_rate", self.learning_rate, as_rate))
        if not 0 <= _validate.finite("momentum", self.momentum) < 1:
            _validate.refuse("momentum", ">= 0 and < 1", self.momentum)
        if self.momentum and self.optimizer not in ("SGD", torch.optim.SGD):
            raise DpbnnError(f"momentum must be 0 unless the optimizer is 'SGD', got {self.momentum}; use options.")
        if not self.is_plain:
            self.start({"": torch.zeros(1, requires_grad=True)})

    @property
    def is_plain(self) -> bool:
        """Whether it is plain descent, which needs no optimizer: loading torch's takes longer than many a run."""
        return self.optimizer in ("SGD", torch.optim.SGD) and not self.momentum and not self.options

    @property
    def optimizer_name(self) -> str:
        """As in `torch.optim`."""
        return self._class().__name__

    def start(self, weights: Weights) -> Optimizer | None:
        """The optimizer, which remembers earlier steps; None for plain descent, which remembers nothing."""
        if self.is_plain:
            return None
        options = dict(self.options) | ({"momentum": self.momentum} if self.momentum else {})
        if next(iter(weights.values())).is_cuda and "capturable" in signature(self._class()).parameters:
            options = {"capturable": True} | options
        first = runs_of(self.learning_rate, 1)[0][0]
        try:
            return self._class()(list(weights.values()), lr=first, **options)  # type: ignore[call-arg]
        except (TypeError, ValueError) as error:
            raise DpbnnError(f"options do not fit torch.optim.{self._class().__name__}: {error}.") from error

    def phase(self, optimizer: Optimizer | None, step: int) -> Hashable | None:
        """The rate, if a step can be captured; None if the optimizer counts steps on the host."""
        counts_on_device = optimizer is None or optimizer.defaults.get("capturable", False)
        return value_at(self.learning_rate, step) if counts_on_device or type(optimizer) is torch.optim.SGD else None

    def step(self, optimizer: Optimizer | None, weights: Weights, terms: Sequence[Term], step: int) -> None:
        """Move the weights, in place, along the sum of the terms."""
        rate = value_at(self.learning_rate, step)
        if optimizer is None:
            for term in terms:
                term.add_to(weights, -rate)
            return
        gradients = {name: torch.zeros_like(values) for name, values in weights.items()}
        for name, values in weights.items():
            values.grad = gradients[name]
        for term in terms:
            term.add_to(gradients, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def settings(self) -> dict[str, Any]:
        """Plain values, for the release."""
        return {
            "learning_rate": plain_schedule(self.learning_rate),
            "momentum": self.momentum,
            "optimizer": self.optimizer_name,
            "options": {name: repr(value) for name, value in self.options.items()},
        }

    def _class(self) -> type[Optimizer]:
        named = getattr(torch.optim, self.optimizer, None) if isinstance(self.optimizer, str) else self.optimizer
        if not (isinstance(named, type) and issubclass(named, Optimizer)) or named is Optimizer:
            classes = [name for name, value in vars(torch.optim).items() if isinstance(value, type)]
            alike = [name for name in classes if name.lower() == str(self.optimizer).lower()]
            if alike:
                raise DpbnnError(f"optimizer must be a name in torch.optim, got {self.optimizer!r}; use {alike[0]!r}.")
            _validate.refuse("optimizer", "a name in torch.optim such as 'SGD' or 'Adam', or a class", self.optimizer)
        if named.__name__ in UNUSABLE:
            why = UNUSABLE[named.__name__]
            raise DpbnnError(f"optimizer must not be {named.__name__}: {why}; use 'SGD' or 'Adam'.")
        return named


def as_rate(name: str, value: object) -> float:
    """A learning rate in the range that arithmetic bears."""
    rate = float(_validate.positive(name, value))
    within = SMALLEST_RATE <= rate <= LARGEST_RATE
    return rate if within else _validate.refuse(name, f"from {SMALLEST_RATE:g} to {LARGEST_RATE:g}", value)


def prior_term(prior: Prior, weights: Weights, divisor: float) -> Term:
    """``grad r(w) / divisor`` for the network's weights; the prior of a likelihood's weights is flat.

    It must be the first term of a step: a Gaussian's gradient is the weights over a number, and they are not copied.
    """
    of_prior = of_network(weights)
    if isinstance(prior, Gaussian):
        return Term(of_prior, divisor * prior.scale**2)
    return Term({} if isinstance(prior, Flat) else prior.energy_gradient(of_prior), divisor)


def implied_temperature(learning_rate: Schedule, plan: PrivacyPlan) -> float | Runs:
    """tau of Langevin dynamics at this rate of the whole posterior, or its runs where it changes along the plan."""
    n, B = plan.dataset_size, plan.batch_size

    def at(rate: float, clip_norm: float, noise: float) -> float:
        return langevin.temperature(rate, noise, clip_norm=clip_norm, dataset_size=n, batch_size=B)

    return combined(at, plan.steps, learning_rate, plan.clip_norm, plan.noise_multiplier)


def plain_schedule(schedule: Schedule) -> float | list[list[float]]:
    """A number or lists of them, for JSON."""
    return schedule if isinstance(schedule, (int, float)) else [list(run) for run in schedule]


def of_network(weights: Weights) -> Weights:
    """The weights without those of a likelihood, on which the prior does not act."""
    return {name: values for name, values in weights.items() if not name.startswith("likelihood.")}
