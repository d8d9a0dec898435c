"""A run as a dp-accounting event: the form in which experts exchange what was released.

Composed( SelfComposed( PoissonSampled(q, Gaussian(s)), T ), ... ), with a mixture of Gaussians where a person has
several records. Dp-accounting has no event for a release that is known by a pure epsilon alone: an unsupported event,
which every accountant refuses, stands for it, and never one that could be cheaper.
"""

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    UnsupportedDpEvent,
)
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from scipy.stats import binom

from dpbnn.privacy.accountants.charge import Charge

__all__ = ["composed_event"]


def composed_event(charge: Charge) -> DpEvent:
    """The event of all steps, and of what was bought before them."""
    if any(noise == 0 for noise, _ in charge.noise_levels):
        return NonPrivateDpEvent()
    pure = [UnsupportedDpEvent() for _ in charge.pure_epsilons]
    runs = [*pure, *(SelfComposedDpEvent(_step(charge, noise), steps) for noise, steps in charge.noise_levels)]
    return runs[0] if len(runs) == 1 else ComposedDpEvent(runs)


def _step(charge: Charge, noise: float) -> DpEvent:
    rate, most = charge.sampling_rate, charge.records_per_person
    if rate == 1:
        return GaussianDpEvent(noise / most)
    if most == 1:
        return PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    hits = range(most + 1)
    weights = [float(binom.pmf(hit, most, rate)) for hit in hits]
    return MixtureOfGaussiansDpEvent(noise, [float(hit) for hit in hits], weights)
