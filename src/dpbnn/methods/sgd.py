"""DP-SGD (Algorithm 1 of the paper), and any optimizer of `torch.optim` on the same gradient.

    w <- w - eta (G / B + grad r(w) / n)

G is the released sum, B the plan's batch size, n its data set size, r the prior's energy.

    >>> import dpbnn
    >>> plan = dpbnn.PrivacyPlan(60_000, 256, 3515, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)
    >>> round(dpbnn.SGD(learning_rate=0.25).temperature(plan), 3)
    0.435

Reference: Abadi et al. 2016 (arXiv 1607.00133).
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch.optim import Optimizer

from dpbnn.device.flat import flat_copies
from dpbnn.errors import DpbnnError
from dpbnn.methods.descent import Descent, Term, implied_temperature, of_network, prior_term
from dpbnn.methods.method import Method, Prepared
from dpbnn.methods.sgld import SGLD
from dpbnn.models.priors import Flat, Prior, checked_prior
from dpbnn.posterior import PointEstimate
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import Schedule, check_length, combined
from dpbnn.types import NoisySum, Weights

__all__ = ["SGD", "SGDState"]


@dataclass
class SGDState:
    """The weights, which are updated in place, and the optimizer, unless it is plain descent."""

    weights: Weights
    optimizer: Optimizer | None
    plan: PrivacyPlan


@dataclass(frozen=True)
class SGD(Method[SGDState]):
    """One point estimate by noisy gradients.

    Args:
        learning_rate: eta; a number, or runs of (value, steps).
        prior: acts as weight decay, outside the clip.
        momentum: heavy-ball momentum, for the optimizer "SGD".
        optimizer: a name in `torch.optim`, or an optimizer class; "LBFGS" cannot be private.
        options: further arguments of the optimizer, as ``{"betas": (0.9, 0.99)}``.
    """

    learning_rate: Schedule
    prior: Prior = field(default_factory=Flat)
    momentum: float = 0.0
    optimizer: str | type[Optimizer] = "SGD"
    options: Mapping[str, Any] = field(default_factory=dict)

    name: ClassVar[str] = "sgd"
    """In the release."""

    def __post_init__(self) -> None:
        checked_prior("prior", self.prior)
        object.__setattr__(self, "learning_rate", self._descent.learning_rate)

    @cached_property
    def _descent(self) -> Descent:
        return Descent(self.learning_rate, self.momentum, self.optimizer, self.options)

    def prepare(self, plan: PrivacyPlan) -> Prepared:
        """The plan as it is; the settings; without masks, the temperature that the plan's noise implies."""
        check_length("learning_rate", self.learning_rate, plan.steps)
        settings = {"method": self.name, "prior": repr(self.prior), **self._descent.settings()}
        if not plan.is_private or self.has_dropout:
            return Prepared(plan, settings)
        try:
            return Prepared(plan, settings | {"implied_temperature": self.temperature(plan)})
        except DpbnnError as error:
            return Prepared(plan, settings | {"implied_temperature": None, "no_temperature_because": str(error)})

    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> SGDState:
        """The weights as given."""
        self.prior.check(list(of_network(weights)))
        flat = flat_copies(weights)
        return SGDState(flat, self._descent.start(flat), plan)

    def begin_step(self, state: SGDState, step: int) -> Hashable | None:
        """The learning rate is the phase, unless the optimizer counts on the host."""
        return self._descent.phase(state.optimizer, step)

    def weights(self, state: SGDState, step: int) -> Weights:
        """The current weights."""
        return state.weights

    def update(self, state: SGDState, noisy: NoisySum, step: int) -> SGDState:
        """``w <- w - eta (G / B + grad r(w) / n)``, or what the optimizer makes of that gradient."""
        from_prior = prior_term(self.prior, state.weights, state.plan.dataset_size)
        terms = [from_prior, Term(noisy.gradients, state.plan.batch_size)]
        self._descent.step(state.optimizer, state.weights, terms, step)
        return state

    def to_posterior(self, state: SGDState) -> PointEstimate:
        """The last weights."""
        return PointEstimate({name: values.clone() for name, values in state.weights.items()})

    def temperature(self, plan: PrivacyPlan) -> float:
        """``tau = eta n (s C / B)^2 / (2 (1 - momentum))``: at this temperature the iterates are Langevin dynamics.

        Exact for plain descent; with momentum it holds in the long run. Raises where there is no single temperature.
        """
        if self._descent.optimizer_name != "SGD" or self.options:
            raise DpbnnError(
                f"{self._descent.optimizer_name} with options {dict(self.options)} rescales its noise step by step, so "
                "that no single temperature describes it; use the plain optimizer 'SGD'."
            )
        share = plan.dataset_size * (1 - self.momentum)
        rates = combined(lambda rate: rate / share, plan.steps, self.learning_rate)
        temperature = implied_temperature(rates, plan)
        if isinstance(temperature, float):
            return temperature
        raise DpbnnError(
            f"The temperature changes along the run, from {temperature[0][0]:.4g} to {temperature[-1][0]:.4g}; keep "
            "sqrt(learning_rate) * clip_norm * noise_multiplier constant for a single one."
        )

    def as_sgld(self, plan: PrivacyPlan) -> tuple[SGLD, PrivacyPlan]:
        """The sampler with the same iterates under the same plan: its rate is ``eta / n``, its temperature is implied.

        Guarantees:
            DP-SGD and its conversion to DP-SGLD give the same iterates from the same seeds.
        """
        if not self._descent.is_plain:
            raise DpbnnError(
                "Only plain descent is a Langevin sampler; as_sgld needs optimizer 'SGD' without momentum or options."
            )
        rates = combined(lambda rate: rate / plan.dataset_size, plan.steps, self.learning_rate)
        return SGLD(rates, self.prior), plan
