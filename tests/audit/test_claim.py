"""Claims: levels are those of each step of the plan, and what they cost is never more than the plan says."""

import math
from dataclasses import replace

from dpbnn.audit.claim import Level, epsilon_shown, levels_of, repeated
from tests.audit.test_mechanism import PLAN, TWO_LEVELS


def test_levels_are_read_off_the_plan_step_by_step():
    plan = replace(PLAN, **TWO_LEVELS)
    assert levels_of(plan) == (Level(1.3, 1.5, 0, 1), Level(1.3, 0.7, 1, 1), Level(2.0, 0.7, 2, 2))
    by_step = [(level.noise, level.clip_norm) for level in levels_of(plan) for _ in range(level.steps)]
    assert by_step == [(plan.noise_at(step), plan.clip_norm_at(step)) for step in range(plan.steps)]
    assert repeated([1.3, 1.3, 2.0], 5) == ((1.3, 10), (2.0, 5))
    assert repeated([1.3, 1.3], 5) == 1.3


def test_equal_runs_are_one_level_and_levels_that_come_back_are_two():
    plan = replace(PLAN, noise_multiplier=((1.3, 1), (1.3, 1), (2.0, 1), (1.3, 1)))
    assert levels_of(plan) == (Level(1.3, 1.5, 0, 2), Level(2.0, 1.5, 2, 1), Level(1.3, 1.5, 3, 1))
    assert [level.scale for level in levels_of(plan)] == [1.3 * 1.5, 3.0, 1.3 * 1.5]


def test_more_levels_than_are_composed_cost_a_little_less_and_never_more():
    noise = tuple((4.0 + 0.05 * level, 2) for level in range(20))
    plan = replace(PLAN, steps=40, noise_multiplier=noise)
    exact = 1 / math.sqrt(sum(steps / value**2 for value, steps in noise))
    one_level = replace(PLAN, steps=1, noise_multiplier=exact)
    assert 0.97 * epsilon_shown(one_level) < epsilon_shown(plan) < epsilon_shown(one_level)
    assert epsilon_shown(plan, less=0.5) > plan.epsilon() >= epsilon_shown(plan)
