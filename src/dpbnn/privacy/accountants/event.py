"""A run as a dp-accounting event: the form in which experts exchange what was released.

Composed( SelfComposed( PoissonSampled(q, Gaussian(s)), T ), ... ), with a mixture of Gaussians where a person has
several records. For a release of which only a pure epsilon is known dp-accounting has no event: an unsupported one
stands for it, which every accountant refuses, and never one that could be cheaper.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["composed_event"]


def composed_event(
    levels: tuple[tuple[float, int], ...],
    sampling_rate: float,
    records_per_person: int,
    pure_epsilons: tuple[float, ...] = (),
) -> "DpEvent":
    """The event of all steps, `levels` being pairs of noise multiplier and number of steps, and what went before."""
    from dp_accounting import ComposedDpEvent, NonPrivateDpEvent, SelfComposedDpEvent, UnsupportedDpEvent

    if any(noise == 0 for noise, _ in levels):
        return NonPrivateDpEvent()
    pure = [UnsupportedDpEvent() for _ in pure_epsilons]
    steps = [SelfComposedDpEvent(_step(noise, sampling_rate, records_per_person), steps) for noise, steps in levels]
    runs = [*pure, *steps]
    return runs[0] if len(runs) == 1 else ComposedDpEvent(runs)


def _step(noise: float, sampling_rate: float, records_per_person: int) -> "DpEvent":
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from scipy.stats import binom

    if sampling_rate == 1:
        return GaussianDpEvent(noise / records_per_person)
    if records_per_person == 1:
        return PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(noise))
    hits = range(records_per_person + 1)
    weights = [float(binom.pmf(hit, records_per_person, sampling_rate)) for hit in hits]
    return MixtureOfGaussiansDpEvent(noise, [float(hit) for hit in hits], weights)
