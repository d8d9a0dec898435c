"""Where the sums and the releases of a captured run lie, from its first step to its last."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpbnn.clipping.gradient import draws_of, shorten
from dpbnn.clipping.objective import wide
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.device.flat import flat_copies, joined
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.privacy.noise.source import AddsNoise
from dpbnn.training.steps.work import Work
from dpbnn.types import ClippedSum, Draws, NoisySum, Weights

__all__ = ["Room", "copied"]


@dataclass
class Room:
    """A run with memory for its sums, for the sums that get noise, and for its releases.

    Sums of several parts, of several processes or of many records are float64 (`adds_up`). Releases have memory of
    their own: a method may keep one and take later gradients where it points, while the next sum is in the making.
    """

    work: Work
    sums: Weights
    noised: Weights
    noisy: NoisySum
    adds_up: bool

    @staticmethod
    def of(work: Work, state: Any, step: int, has_parts: bool) -> "Room":
        """Room for gradients at the weights of a step."""
        work.method.begin_step(state, step)
        where = work.method.weights(state, step)
        like = {name: wide(values) for name, values in draws_of(where)[0].items()}
        pair = (2,) if isinstance(where, Draws) else ()  # a gradient in the mean and one in rho
        adds_up = has_parts or work.in_float64
        released = flat_copies({name: values.new_empty((*pair, *values.shape)) for name, values in like.items()})
        sums = flat_copies({name: values.double() for name, values in released.items()} if adds_up else released)
        noised = flat_copies(released) if adds_up and not work.in_float64 else sums
        return Room(work, sums, noised, NoisySum(released), adds_up)

    def clear(self) -> None:
        """The sums over no records."""
        for (numbers,) in joined(list(self.sums.values())):
            numbers.zero_()

    def add_noise(self, step: int, source: AddsNoise, together: int) -> None:
        """Write the noisy sums, of at most so many records `together`, to where the releases lie."""
        noisy, plan = self.noisy.gradients, self.work.plan
        clip_norm = plan.clip_norm_at(step)
        if together > LARGEST_PART and not self.work.in_float64:
            shorten(self.sums, clip_norm)
        types = {name: values.dtype for name, values in noisy.items()}
        clipped = ClippedSum(copied(self.sums, self.noised), clip_norm, types)
        copied(add_noise(clipped, plan.noise_at(step), source, step).gradients, noisy)


def copied(values: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values in their places, where some of them may be already."""
    names = sorted(places)
    for place, given in joined([places[name] for name in names], [values[name] for name in names]):
        if given.data_ptr() != place.data_ptr():
            place.view_as(given).copy_(given)
    return dict(places)
