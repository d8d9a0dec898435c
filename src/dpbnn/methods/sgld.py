"""DP-SGLD (Algorithm 2 of the paper): samples from the posterior, with the privacy noise as Langevin noise.

    w <- w - eta ((n/B) G + grad r(w)),      G = clipped sum + s C N(0, I),      tau = eta (s n C / B)^2 / 2

At temperature tau = 1 the chain targets the posterior, at tau = 1/2 (the paper's) a narrower one: exactly
only as eta -> 0, with no clipping and little minibatch noise. `docs/methods.md` has figures of what these three do.

    >>> import dpbnn
    >>> plan = dpbnn.PrivacyPlan(60_000, 256, 3515, clip_norm=1.5, noise_multiplier=1.272074, delta=1e-5)
    >>> round(dpbnn.SGLD(learning_rate=5e-6, prior=dpbnn.Gaussian(0.1)).temperature_under(plan), 4)
    0.5

Reference: Welling and Teh 2011.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from dpbnn import _validate
from dpbnn.device.flat import flat_copies
from dpbnn.errors import DpbnnError
from dpbnn.methods.descent import Term, as_rate, implied_temperature, of_network, plain_schedule, prior_term
from dpbnn.methods.method import Method, Prepared
from dpbnn.methods.registry import METHODS
from dpbnn.methods.store import Keeping, KeepSamples, KeepSummary, Store
from dpbnn.models.priors import Gaussian, Prior, checked_prior
from dpbnn.posterior import Posterior
from dpbnn.privacy import temperature as langevin
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import Runs, Schedule, as_schedule, check_length, combined, runs_of, value_at
from dpbnn.seeds import FlatWeights, derived_seed
from dpbnn.types import NoisySum, Weights

__all__ = ["SGLD", "SGLDState"]

TOLERANCE = 1e-6
TOO_HOT = 10.0
COLDEST = 1e-30
ROUNDING = 1e-11
"""The noise grows by this share, so that rounding it to twelve digits takes nothing away."""


@dataclass
class SGLDState:
    """The weights, which are updated in place, and the samples that are kept of the chain.

    Without privacy, also room for the Langevin noise, which the privacy noise provides otherwise.
    """

    weights: Weights
    store: Store
    plan: PrivacyPlan
    seed: int
    langevin_noise: FlatWeights | None = None


@dataclass(frozen=True)
class SGLD(Method[SGLDState]):
    """Samples along a noisy chain.

    Args:
        learning_rate: eta of the whole posterior: that of `SGD` divided by n. A number, or runs of (value, steps).
        prior: the weights' distribution before any data.
        temperature: tau; None takes the one that the plan's noise implies (without privacy: 1). A given one sets the
            noise, and epsilon is reported for that; it must not ask for less noise than the plan has.
        keep_as: `KeepSamples(...)` or `KeepSummary(...)`.
    """

    learning_rate: Schedule
    prior: Prior = field(default_factory=lambda: Gaussian(1.0))
    temperature: float | None = None
    keep_as: Keeping = field(default_factory=KeepSamples)

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule("learning_rate", self.learning_rate, as_rate))
        checked_prior("prior", self.prior)
        if self.temperature is not None and _validate.positive("temperature", self.temperature) < COLDEST:
            _validate.refuse("temperature", f"at least {COLDEST:g}", self.temperature)
        if not isinstance(self.keep_as, (KeepSamples, KeepSummary)):
            _validate.refuse("keep_as", "KeepSamples(...) or KeepSummary(...)", self.keep_as)

    def prepare(self, plan: PrivacyPlan) -> Prepared:
        """The plan with the noise that the temperature asks for; the settings, and the temperature of the chain.

        Remarks on a temperature that was not asked for, and at which hardly anything is left of the posterior.
        """
        check_length("learning_rate", self.learning_rate, plan.steps)
        plan, temperature = self._heated(plan), self.temperature_under(plan)
        settings = {
            "method": "sgld",
            "learning_rate": plain_schedule(self.learning_rate),
            "prior": repr(self.prior),
            "temperature": plain_schedule(temperature),
            "keep_as": repr(self.keep_as),
        }
        hottest = max(tau for tau, _ in runs_of(temperature, plan.steps))
        remark = (
            f"The plan's noise implies temperature {hottest:.3g}, far above 1: the chain will mostly show noise. The "
            f"learning rate of SGLD is that of SGD divided by {plan.dataset_size}; lower it, or the clip norm."
        )
        is_too_hot = self.temperature is None and hottest > TOO_HOT
        return Prepared(plan, settings, (remark,) if is_too_hot else (), self.keep_as.folder)

    def _heated(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan with the noise that the temperature asks for: never less than it had."""
        if self.temperature is None or not plan.is_private:
            return plan
        tau, n, B = self.temperature, plan.dataset_size, plan.batch_size

        def noise(rate: float, clip_norm: float, least: float) -> float:
            needed = langevin.noise_multiplier(rate, tau, clip_norm=clip_norm, dataset_size=n, batch_size=B)
            if needed < least * (1 - TOLERANCE):
                raise DpbnnError(_too_cold(tau, rate, clip_norm, needed, least))
            return max(needed, least) * (1 + ROUNDING)

        levels = plan.clip_norm, plan.noise_multiplier
        return replace(plan, noise_multiplier=combined(noise, plan.steps, self.learning_rate, *levels))

    def temperature_under(self, plan: PrivacyPlan) -> float | Runs:
        """tau, or its runs where it changes along the run."""
        if self.temperature is not None:
            return self.temperature
        if not plan.is_private:
            return 1.0
        return implied_temperature(self.learning_rate, plan)

    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> SGLDState:
        """The weights as given, and nothing kept."""
        self.prior.check(list(of_network(weights)))
        flat = flat_copies(weights)
        langevin_noise = None if plan.is_private else FlatWeights(flat)
        return SGLDState(flat, self.keep_as.open(flat, plan.steps), plan, seed, langevin_noise)

    def begin_step(self, state: SGLDState, step: int) -> Hashable | None:
        """Without privacy, draw the Langevin noise. The phase is the learning rate."""
        if state.langevin_noise is not None:
            state.langevin_noise.draw_normals(derived_seed(state.seed, step))
        return value_at(self.learning_rate, step)

    def weights(self, state: SGLDState, step: int) -> Weights:
        """The current weights."""
        return state.weights

    def update(self, state: SGLDState, noisy: NoisySum, step: int) -> SGLDState:
        """``w <- w - n eta (G / B + grad r(w) / n)``: DP-SGD with the learning rate n eta."""
        plan, rate = state.plan, value_at(self.learning_rate, step)
        prior_term(self.prior, state.weights, plan.dataset_size).add_to(state.weights, -plan.dataset_size * rate)
        Term(noisy.gradients, plan.batch_size).add_to(state.weights, -plan.dataset_size * rate)
        if state.langevin_noise is not None:
            scale = math.sqrt(2 * rate * (1.0 if self.temperature is None else self.temperature))
            Term(state.langevin_noise.views, 1.0).add_to(state.weights, scale)
        return state

    def end_step(self, state: SGLDState, step: int) -> None:
        """Keep the iterate, as important as its learning rate."""
        state.store.keep(step, state.weights, value_at(self.learning_rate, step))

    def to_posterior(self, state: SGLDState) -> Posterior:
        """What was kept of the chain."""
        return state.store.posterior(state.weights)

    def as_sgd(self, plan: PrivacyPlan) -> tuple[Method[Any], PrivacyPlan]:
        """`SGD` with the same iterates: ``n eta``, under the plan with the noise of this temperature.

        The prior keeps its scale: here its energy counts once beside the sum over n records, there it is divided by n.

        Guarantees:
            DP-SGLD and its conversion to DP-SGD give the same iterates from the same seeds.
        """
        if not plan.is_private:
            raise DpbnnError("Without privacy noise DP-SGD does not sample; as_sgd needs a private plan.")
        rates = combined(lambda rate: rate * plan.dataset_size, plan.steps, self.learning_rate)
        return METHODS["sgd"].load()(rates, self.prior), self.prepare(plan).plan


def _too_cold(tau: float, rate: float, clip_norm: float, needed: float, least: float) -> str:
    up = least / needed
    return (
        f"temperature {tau:g} with learning_rate {rate:g} and clip_norm {clip_norm:g} needs noise_multiplier "
        f"{needed:.6g}, below the plan's {least:.6g}, and would break its budget; use temperature at least "
        f"{tau * up**2:.6g} (or None), or learning_rate at most {rate / up**2:.6g}, or clip_norm at most "
        f"{clip_norm / up:.6g}."
    )
