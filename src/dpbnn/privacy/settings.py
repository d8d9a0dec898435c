"""Completes a plan from the settings that a user gives: the noise from a budget, or the other way round.

Langevin noise is privacy noise, so that one relation ties four settings of SGLD, and three of them give the fourth:

    s = sqrt(2 tau / eta) B / (n C)

    >>> draft = PrivacyPlan(60_000, 256, 3515, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
    >>> given = Given(clip_norm=1.5, learning_rate=5e-6, temperature=0.5)
    >>> round(complete("sgld", draft, given, {"sgld": True}).plan.noise_at(0), 4)
    1.2721
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpbnn._validate import one_of, positive
from dpbnn.errors import DpbnnError
from dpbnn.privacy import temperature as langevin
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["Given", "Settings", "complete"]

_TOLERANCE = 1e-6
_TIED = ("learning_rate", "clip_norm", "temperature")


@dataclass(frozen=True)
class Given:
    """The settings that the user gave; the others are None."""

    clip_norm: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    learning_rate: float | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                positive(name, value)
        if self.noise_multiplier is not None and self.epsilon is not None:
            raise DpbnnError(
                "noise_multiplier and epsilon must not both be given, as each follows from the other; drop one."
            )


@dataclass(frozen=True)
class Settings:
    """A complete plan with its learning rate and temperature; None for those that it leaves open."""

    plan: PrivacyPlan
    learning_rate: float | None
    temperature: float | None


def complete(method: str, draft: PrivacyPlan, given: Given, is_sampler: Mapping[str, bool]) -> Settings:
    """The settings that follow from the given ones; the clip norm and the noise of the draft do not matter.

    `is_sampler` says of each method, by name, whether the plan's noise is its Langevin noise.

    Guarantees:
        Any three of the four SGLD settings give the fourth.
        Contradicting settings are refused.
    """
    one_of("method", method, is_sampler)
    noise = given.noise_multiplier if given.epsilon is None else draft.within(given.epsilon).noise_at(0)
    if is_sampler[method]:
        return _complete_sampler(method, draft, given, noise)
    if given.temperature is not None:
        samplers = " or ".join(name for name, is_one in is_sampler.items() if is_one)
        raise DpbnnError(
            f"temperature must be given for {samplers} only, got {given.temperature!r} for {method}; drop it."
        )
    if noise is None:
        raise DpbnnError("noise_multiplier or epsilon must be given, got neither; the other follows from it.")
    plan = replace(draft, clip_norm=given.clip_norm or 1.0, noise_multiplier=noise)
    eta, temperature = given.learning_rate, None
    if method == "sgd" and eta is not None:
        temperature = _temperature(plan, eta / plan.dataset_size)  # DP-SGD with eta_SGD is SGLD with eta = eta_SGD / n
    return Settings(plan, eta, temperature)


def _complete_sampler(method: str, draft: PrivacyPlan, given: Given, required: float | None) -> Settings:
    known = [name for name in _TIED if getattr(given, name) is not None]
    if len(known) < 2:
        raise DpbnnError(
            f"{method} must have at least two of learning_rate, clip_norm and temperature, "
            f"got {', '.join(known) or 'none'}; with two of them the noise (or epsilon) gives the third, "
            "and all three give the noise."
        )
    eta, clip_norm, tau = given.learning_rate, given.clip_norm, given.temperature
    ratio = draft.batch_size / draft.dataset_size
    deviation = math.sqrt(2 * tau / eta) * ratio if tau and eta else 0.0  # s C
    noise = deviation / clip_norm if clip_norm and deviation else required
    if noise is None:
        missing = next(name for name in _TIED if name not in known)
        raise DpbnnError(
            f"{method} with {known[0]} and {known[1]} must also have noise_multiplier or epsilon, from which {missing} "
            f"follows, or {missing}, from which the noise follows; got none of them."
        )
    clip_norm = clip_norm or deviation / noise
    plan = replace(draft, clip_norm=clip_norm, noise_multiplier=noise)
    if len(known) == len(_TIED) and required is not None:
        _refuse_contradiction(plan, given, required)
    eta = eta or 2 * (tau or 0.0) * (ratio / (noise * clip_norm)) ** 2
    return Settings(plan, eta, tau or _temperature(plan, eta))


def _refuse_contradiction(plan: PrivacyPlan, given: Given, required: float) -> None:
    """Refuse noise, implied by learning rate, clip norm and temperature, that is too little or not the given one."""
    noise = plan.noise_at(0)
    most = math.inf if given.noise_multiplier is None else required * (1 + _TOLERANCE)
    if required * (1 - _TOLERANCE) <= noise <= most:
        return
    eta, clip_norm = given.learning_rate or 0.0, plan.clip_norm_at(0)
    needed = f"noise_multiplier {required:.6g}" + ("" if given.epsilon is None else f" for epsilon {given.epsilon:g}")
    temperature = _temperature(replace(plan, noise_multiplier=required), eta)
    raise DpbnnError(
        f"learning_rate, clip_norm and temperature must agree with {needed}, got {noise:.6g} from them; drop one of "
        f"the four, or use temperature {temperature:.6g}, or learning_rate {eta * (noise / required) ** 2:.6g}, or "
        f"clip_norm {clip_norm * noise / required:.6g}."
    )


def _temperature(plan: PrivacyPlan, learning_rate: float) -> float:
    sizes = {"dataset_size": plan.dataset_size, "batch_size": plan.batch_size}
    return langevin.temperature(learning_rate, plan.noise_at(0), clip_norm=plan.clip_norm_at(0), **sizes)
