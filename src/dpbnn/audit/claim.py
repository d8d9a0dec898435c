"""What a plan claims, read off its settings alone: none of its own arithmetic is trusted.

>>> from dpbnn.privacy.plan import PrivacyPlan
>>> plan = PrivacyPlan(100, 10, 5, clip_norm=1.0, noise_multiplier=((2.0, 3), (3.0, 2)), delta=1e-5)
>>> [(level.noise, level.first_step, level.steps) for level in levels_of(plan)]
[(2.0, 0, 3), (3.0, 3, 2)]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from dpbnn.audit.bounds import epsilon_of_noise
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import runs_of

__all__ = ["Level", "epsilon_shown", "levels_of", "repeated"]

MOST_COMPOSED = 8
"""Noise multipliers."""


@dataclass(frozen=True)
class Level:
    """Consecutive steps with the same noise multiplier and the same clip norm."""

    noise: float
    clip_norm: float
    first_step: int
    steps: int

    @property
    def scale(self) -> float:
        """The standard deviation of the noise."""
        return self.noise * self.clip_norm


def levels_of(plan: PrivacyPlan) -> tuple[Level, ...]:
    """All levels of a plan, in their order."""
    noises, norms = _by_step(plan, plan.noise_multiplier), _by_step(plan, plan.clip_norm)
    starts = sorted({start for start, _ in (*noises, *norms)})

    def at(known: list[tuple[int, float]], step: int) -> float:
        return [value for start, value in known if start <= step][-1]

    return tuple(
        Level(at(noises, first), at(norms, first), first, end - first) for first, end in pairwise([*starts, plan.steps])
    )


def _by_step(plan: PrivacyPlan, schedule: object) -> list[tuple[int, float]]:
    """The steps at which a schedule changes, each with the new value."""
    changes, start = [], 0
    for value, steps in runs_of(schedule, plan.steps):  # type: ignore[arg-type]
        changes.append((start, value))
        start += steps
    return changes


def repeated(values: Sequence[float], steps: int) -> float | tuple[tuple[float, int], ...]:
    """A schedule in which each value lasts for so many steps."""
    runs = tuple((value, steps * len(list(same))) for value, same in groupby(values))
    return runs[0][0] if len(runs) == 1 else runs


def _few(steps: dict[float, int]) -> list[tuple[float, int]]:
    """So few noise multipliers that composing them takes seconds: each stands for smaller ones, which cost no less."""
    ordered = sorted(steps)
    size = math.ceil(len(ordered) / MOST_COMPOSED)
    groups = (ordered[start : start + size] for start in range(0, len(ordered), size))
    return [(group[-1], sum(steps[noise] for noise in group)) for group in groups]


def epsilon_shown(plan: PrivacyPlan, less: float = 1.0) -> float:
    """The epsilon that a run under the plan has at least, if its noise is `less` times what is claimed."""
    steps: dict[float, int] = {}
    for level in levels_of(plan):
        steps[level.noise] = steps.get(level.noise, 0) + level.steps
    levels = tuple((less * noise, number) for noise, number in _few(steps))
    return epsilon_of_noise(levels, plan.batch_size / plan.dataset_size, plan.delta, plan.max_records_per_person)
