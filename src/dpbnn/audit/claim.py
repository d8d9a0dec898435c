"""What a plan claims, by its settings alone: its own arithmetic is not trusted.

>>> from dpbnn.privacy.plan import PrivacyPlan
>>> plan = PrivacyPlan(100, 10, 5, clip_norm=1.0, noise_multiplier=((2.0, 3), (3.0, 2)), delta=1e-5)
>>> [(level.noise, level.first_step, level.steps) for level in levels_of(plan)]
[(2.0, 0, 3), (3.0, 3, 2)]
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dpbnn.audit.bounds import epsilon_of_noise
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import by_step

__all__ = ["Level", "epsilon_shown", "levels_of", "repeated"]

MOST_COMPOSED = 8
"""The most noise multipliers that are composed; more would take longer than seconds."""


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
    """All levels of a plan, in order."""
    levels, first_step = [], 0
    noises, norms = (by_step(schedule, plan.steps) for schedule in (plan.noise_multiplier, plan.clip_norm))
    for (noise, clip_norm), steps in groupby(zip(noises, norms, strict=True)):
        levels.append(Level(noise, clip_norm, first_step, len(list(steps))))
        first_step += levels[-1].steps
    return tuple(levels)


def repeated(values: Sequence[float], steps: int) -> float | tuple[tuple[float, int], ...]:
    """A schedule in which each value lasts for `steps` steps."""
    runs = tuple((value, steps * len(list(same))) for value, same in groupby(values))
    return runs[0][0] if len(runs) == 1 else runs


def epsilon_shown(plan: PrivacyPlan, less: float = 1.0) -> float:
    """A lower bound on epsilon of a run under the plan, if its noise is `less` times what the plan claims.

    Where there are many noise multipliers, neighbours count as the largest of them, which costs no more.
    """
    steps: Counter[float] = Counter()
    for level in levels_of(plan):
        steps[level.noise] += level.steps
    noises = sorted(steps)
    size = math.ceil(len(noises) / MOST_COMPOSED)
    groups = [noises[start : start + size] for start in range(0, len(noises), size)]
    composed = tuple((less * group[-1], sum(steps[noise] for noise in group)) for group in groups)
    return epsilon_of_noise(composed, plan.batch_size / plan.dataset_size, plan.delta, plan.max_records_per_person)
