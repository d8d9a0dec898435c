"""From the settings that a user has to a complete plan: budget in, noise out, or the other way round.

Langevin noise is privacy noise, so that for SGLD four settings are tied by one relation, and three give the fourth:

    s = sqrt(2 tau / eta) B / (n C)

    >>> run = Run(dataset_size=60_000, batch_size=256, steps=3515, delta=1e-5)
    >>> given = Given(clip_norm=1.5, learning_rate=5e-6, temperature=0.5)
    >>> round(complete("sgld", run, given).noise_multiplier, 4)
    1.2721
"""

import math
from dataclasses import dataclass

from dpbnn._validate import one_of, positive
from dpbnn.errors import DpbnnError
from dpbnn.privacy import temperature as langevin
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["METHODS", "Given", "Run", "Settings", "complete"]

METHODS = ("sgd", "sgld", "bbp", "mc_dropout")

_TOLERANCE = 1e-6
_TIED = ("learning_rate", "clip_norm", "temperature")


@dataclass(frozen=True)
class Run:
    """What is fixed before noise is thought of."""

    dataset_size: int
    batch_size: int
    steps: int
    delta: float
    clipping: str = "flat"
    max_records_per_person: int = 1

    def plan(self, clip_norm: float, noise_multiplier: float) -> PrivacyPlan:
        """The plan with this clip norm and noise."""
        return PrivacyPlan(
            dataset_size=self.dataset_size,
            batch_size=self.batch_size,
            steps=self.steps,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            delta=self.delta,
            clipping=self.clipping,
            max_records_per_person=self.max_records_per_person,
        )

    def noise_for(self, epsilon: float) -> float:
        """The least noise multiplier within the budget."""
        plan = PrivacyPlan.for_budget(
            epsilon=epsilon,
            delta=self.delta,
            dataset_size=self.dataset_size,
            batch_size=self.batch_size,
            steps=self.steps,
            clip_norm=1.0,
            clipping=self.clipping,
            max_records_per_person=self.max_records_per_person,
        )
        return plan.noise_at(0)


@dataclass(frozen=True)
class Given:
    """What the user gave; None where nothing was given."""

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
    """A complete plan, and the learning rate and temperature that go with it where there are any."""

    plan: PrivacyPlan
    clip_norm: float
    noise_multiplier: float
    learning_rate: float | None
    temperature: float | None


def complete(method: str, run: Run, given: Given) -> Settings:
    """The settings that follow from what was given.

    Guarantees:
        Any three of the four SGLD settings give the fourth.
        Contradicting settings are refused.
    """
    run.plan(clip_norm=1.0, noise_multiplier=1.0)
    if one_of("method", method, METHODS) == "sgld":
        return _complete_sgld(run, given)
    if given.temperature is not None:
        raise DpbnnError(f"temperature must be given for sgld only, got {given.temperature!r} for {method}; drop it.")
    noise = _noise(run, given)
    if noise is None:
        raise DpbnnError("noise_multiplier or epsilon must be given, got neither; the other follows from it.")
    clip_norm = 1.0 if given.clip_norm is None else given.clip_norm
    temperature = None
    if method == "sgd" and given.learning_rate is not None:
        # DP-SGD with eta_SGD is SGLD with eta = eta_SGD / n.
        temperature = _temperature(run, given.learning_rate / run.dataset_size, clip_norm, noise)
    return Settings(run.plan(clip_norm, noise), clip_norm, noise, given.learning_rate, temperature)


def _noise(run: Run, given: Given) -> float | None:
    return given.noise_multiplier if given.epsilon is None else run.noise_for(given.epsilon)


def _complete_sgld(run: Run, given: Given) -> Settings:
    known = [name for name in _TIED if getattr(given, name) is not None]
    if len(known) < 2:
        raise DpbnnError(
            "sgld must have at least two of learning_rate, clip_norm and temperature, "
            f"got {', '.join(known) or 'none'}; with two of them the noise (or epsilon) gives the third, "
            "and all three give the noise."
        )
    noise = _noise(run, given)
    if len(known) == 3:
        return _with_noise_from_temperature(run, given, noise)
    if noise is None:
        missing = next(name for name in _TIED if name not in known)
        raise DpbnnError(
            f"sgld with {known[0]} and {known[1]} must also have noise_multiplier or epsilon, from which {missing} "
            f"follows, or {missing}, from which the noise follows; got none of them."
        )
    eta, clip_norm, tau = given.learning_rate, given.clip_norm, given.temperature
    pull = run.batch_size / (run.dataset_size * noise)
    if clip_norm is None and eta is not None and tau is not None:
        clip_norm = math.sqrt(2 * tau / eta) * pull
    if eta is None and clip_norm is not None and tau is not None:
        eta = 2 * tau * (pull / clip_norm) ** 2
    assert eta is not None
    assert clip_norm is not None
    return Settings(run.plan(clip_norm, noise), clip_norm, noise, eta, tau or _temperature(run, eta, clip_norm, noise))


def _with_noise_from_temperature(run: Run, given: Given, asked: float | None) -> Settings:
    eta, clip_norm, tau = given.learning_rate, given.clip_norm, given.temperature
    assert eta is not None
    assert clip_norm is not None
    assert tau is not None
    noise = langevin.noise_multiplier(
        eta, tau, clip_norm=clip_norm, dataset_size=run.dataset_size, batch_size=run.batch_size
    )
    too_little = asked is not None and noise < asked * (1 - _TOLERANCE)
    too_much = given.noise_multiplier is not None and noise > given.noise_multiplier * (1 + _TOLERANCE)
    if too_little or too_much:
        wanted = f"noise_multiplier {asked:.6g}" + ("" if given.epsilon is None else f" for epsilon {given.epsilon:g}")
        raise DpbnnError(
            f"learning_rate, clip_norm and temperature must agree with {wanted}, got {noise:.6g} from them; drop "
            f"one of the four, or use temperature {_temperature(run, eta, clip_norm, asked or 0.0):.6g}, or "
            f"learning_rate {eta * (noise / (asked or noise)) ** 2:.6g}, or clip_norm "
            f"{clip_norm * noise / (asked or noise):.6g}."
        )
    return Settings(run.plan(clip_norm, noise), clip_norm, noise, eta, tau)


def _temperature(run: Run, learning_rate: float, clip_norm: float, noise: float) -> float:
    return langevin.temperature(
        learning_rate, noise, clip_norm=clip_norm, dataset_size=run.dataset_size, batch_size=run.batch_size
    )
