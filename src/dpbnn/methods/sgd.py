"""DP-SGD (Algorithm 1 of the paper), and any optimizer of `torch.optim` on the same gradient.

    w <- w - eta (G / B + grad r(w) / n)

G is the released sum, B the plan's batch size, n its data set size, r the prior's energy.

    >>> import dpbnn
    >>> dpbnn.SGD(learning_rate=0.25, momentum=0.9).settings()["optimizer"]
    'SGD'

Reference: Abadi et al. 2016 (arXiv 1607.00133).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpbnn import _validate
from dpbnn.posterior import PointEstimate
from dpbnn.priors import Flat, Prior
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.types import DpbnnError, NoisySum, Weights

__all__ = ["SGD"]

UNUSABLE = {
    "LBFGS": "it evaluates the loss again within a step, which no plan accounts for",
    "SparseAdam": "released gradients are dense",
}


@dataclass(frozen=True)
class SGDState:
    """The weights, which are updated in place, and the optimizer, unless it is plain descent."""

    weights: Weights
    optimizer: Optimizer | None
    plan: PrivacyPlan


@dataclass(frozen=True)
class SGD:
    """One point estimate by noisy gradients.

    Args:
        learning_rate: eta.
        prior: acts as weight decay, outside the clip.
        momentum: heavy-ball momentum, for the optimizer "SGD".
        optimizer: a name in `torch.optim`, or an optimizer class; "LBFGS" cannot be private.
        options: further arguments of the optimizer, as ``{"betas": (0.9, 0.99)}``.
    """

    learning_rate: float
    prior: Prior = field(default_factory=Flat)
    momentum: float = 0.0
    optimizer: str | type[Optimizer] = "SGD"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.positive("learning_rate", self.learning_rate)
        if not 0 <= _validate.finite("momentum", self.momentum) < 1:
            _validate.refuse("momentum", ">= 0 and < 1", self.momentum)
        if self.momentum and self.optimizer not in ("SGD", torch.optim.SGD):
            raise DpbnnError(f"momentum must be 0 unless the optimizer is 'SGD', got {self.momentum}; use options.")
        if not isinstance(self.prior, Prior):
            _validate.refuse("prior", "a Prior such as Gaussian(0.1) or Flat()", self.prior)
        if not self._is_plain:
            self._make([torch.zeros(1, requires_grad=True)])

    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> SGDState:
        """The weights as given."""
        own = {name: values.detach().clone() for name, values in weights.items()}
        return SGDState(own, None if self._is_plain else self._make(list(own.values())), plan)

    def weights(self, state: SGDState, step: int) -> Weights:
        """The current weights."""
        return state.weights

    def update(self, state: SGDState, noisy: NoisySum, step: int) -> SGDState:
        """``w <- w - eta (G / B + grad r(w) / n)``, or what the optimizer makes of that gradient."""
        plan, network = state.plan, {n: w for n, w in state.weights.items() if not n.startswith("likelihood.")}
        from_prior = {} if isinstance(self.prior, Flat) else self.prior.energy_gradient(network)
        for name, values in state.weights.items():
            if state.optimizer is None:
                values.add_(noisy.gradients[name], alpha=-self.learning_rate / plan.batch_size)
                if name in from_prior:
                    values.add_(from_prior[name], alpha=-self.learning_rate / plan.dataset_size)
            else:
                values.grad = noisy.gradients[name].div_(plan.batch_size).to(values.dtype)
                if name in from_prior:
                    values.grad.add_(from_prior[name], alpha=1 / plan.dataset_size)
        if state.optimizer is not None:
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
        return state

    def to_posterior(self, state: SGDState) -> PointEstimate:
        """The last weights."""
        return PointEstimate({name: values.clone() for name, values in state.weights.items()})

    def state_to_save(self, state: SGDState) -> dict[str, Any]:
        """Weights and the optimizer's own state."""
        optimizer = {} if state.optimizer is None else state.optimizer.state_dict()
        return {"weights": self.weights(state, 0), "optimizer": optimizer}

    def restored(self, state: SGDState, saved: Mapping[str, Any]) -> SGDState:
        """Weights and the optimizer's own state, as saved."""
        for name, values in state.weights.items():
            values.copy_(saved["weights"][name])
        if state.optimizer is not None:
            state.optimizer.load_state_dict(saved["optimizer"])
        return state

    def settings(self) -> dict[str, Any]:
        """For the release."""
        return {
            "method": "sgd",
            "learning_rate": self.learning_rate,
            "prior": repr(self.prior),
            "momentum": self.momentum,
            "optimizer": self._class().__name__,
            "options": {name: repr(value) for name, value in self.options.items()},
        }

    @property
    def _is_plain(self) -> bool:
        """Plain descent is done here: loading torch's optimizers alone takes longer than many a run."""
        return self.optimizer in ("SGD", torch.optim.SGD) and not self.momentum and not self.options

    def _class(self) -> type[Optimizer]:
        found = getattr(torch.optim, self.optimizer, None) if isinstance(self.optimizer, str) else self.optimizer
        if not (isinstance(found, type) and issubclass(found, Optimizer)) or found is Optimizer:
            _validate.refuse("optimizer", "a name in torch.optim such as 'SGD' or 'Adam', or a class", self.optimizer)
        if found.__name__ in UNUSABLE:
            raise DpbnnError(
                f"optimizer must not be {found.__name__}: {UNUSABLE[found.__name__]}; use 'SGD' or 'Adam'."
            )
        return found

    def _make(self, parameters: list[Tensor]) -> Optimizer:
        options = dict(self.options) | ({"momentum": self.momentum} if self.momentum else {})
        try:
            return self._class()(parameters, lr=self.learning_rate, **options)  # type: ignore[call-arg]  # see below
        except (TypeError, ValueError) as error:
            raise DpbnnError(f"options do not fit torch.optim.{self._class().__name__}: {error}.") from error
