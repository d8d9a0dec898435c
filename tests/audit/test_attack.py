"""The attack: canaries reach the clip norm and no further, and releases with and without them differ by that."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.audit.attack import Attack, Target
from dpbnn.privacy.noise.randomness import Randomness
from tests.audit.test_mechanism import EMPTY, PLAN, TWO_LEVELS


def attack_on(plan=PLAN, method=None, model=None, others=20, observations=4000):
    model = model or nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    target = Target(model, dpbnn.Categorical(), *EMPTY, plan, method or dpbnn.SGD(1.0), None, others)
    return Attack(target, observations)


@pytest.mark.parametrize(("clipping", "least"), [("flat", 0.7), ("automatic", 0.99)])
def test_some_canary_moves_the_sum_by_nearly_the_clip_norm_and_none_by_more(clipping, least):
    attack = attack_on(replace(PLAN, clipping=clipping))
    moves = torch.tensor([float(move.norm()) for move in attack.moves()])
    assert len(moves) == len(attack.canaries[0]) == 32
    assert 0.99 * PLAN.clip_norm < moves.max() <= PLAN.clip_norm
    assert moves.min() < least * PLAN.clip_norm, "small gradients keep their norm in flat clipping alone"
    worst = int(moves.argmax())
    assert list(attack.lengths_elsewhere(worst)) == pytest.approx([float(moves[worst])] * 2, rel=1e-4)
    assert attack.ignores_nan_and_infinity()


def test_equal_rows_of_a_person_move_the_sum_as_many_times_as_far():
    attack = attack_on(replace(PLAN, max_records_per_person=3))
    one, three = (attack.move_of(attack.canary(5, rows)) for rows in (1, 3))
    torch.testing.assert_close(three, 3 * one)
    assert not attack.move_of(attack.canary(5, 0)).any()


@pytest.mark.parametrize("is_fixed", [True, False])
def test_scores_with_and_without_the_person_are_apart_by_how_far_the_person_moves_the_sum(is_fixed):
    model = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.0 if is_fixed else 0.5), nn.Linear(40, 3))
    attack = attack_on(replace(PLAN, noise_multiplier=0.01), model=model, observations=20_000)
    worst = int(torch.stack([move.norm() for move in attack.moves()]).argmax())
    inside, outside = attack.releases(worst)
    apart = np.array(inside.scores) - np.array(outside.scores)
    if is_fixed:
        assert apart == pytest.approx(1.0, abs=0.1)
    assert {side.types["0.weight"] for side in (inside, outside)} == {torch.float32}
    for side in (inside, outside):
        residuals = np.stack(side.residuals)
        assert residuals.shape == (attack.plan.steps, len(attack.places))
        assert residuals.std() == pytest.approx(1.0, abs=0.05)


def test_every_level_gets_its_share_of_the_releases_and_its_noise_is_looked_at():
    attack = attack_on(replace(PLAN, **TWO_LEVELS))
    assert [level.noise for level in attack.levels] == [1.3, 1.3, 2.0]
    assert attack.plan.steps == 3 * attack.steps_per_level
    first_steps = range(0, attack.plan.steps, attack.steps_per_level)
    assert [attack.plan.noise_at(step) for step in first_steps] == [1.3, 1.3, 2.0]
    assert [attack.plan.clip_norm_at(step) for step in first_steps] == [1.5, 0.7, 0.7]
    furthest, check = attack.at_every_level(5)
    assert furthest <= 1 + 1e-6
    assert check.holds


def test_a_last_step_with_too_little_noise_is_noticed(monkeypatch):
    original = Randomness.add_normals

    def without_noise_at_the_end(self, tensors, scale, step):
        original(self, tensors, 1e-3 * scale if step == PLAN.steps - 1 else scale, step)

    attack = attack_on()
    monkeypatch.setattr(Randomness, "add_normals", without_noise_at_the_end)
    assert not attack.at_every_level(5)[1].holds


def test_weights_that_move_by_more_than_the_noisy_sum_are_noticed(monkeypatch):
    attack, original = attack_on(), dpbnn.SGD.update
    assert attack.followed("as it is", attack.others).holds

    def twice(self, state, noisy, step):
        return original(self, original(self, state, noisy, step), noisy, step)

    monkeypatch.setattr(dpbnn.SGD, "update", twice)
    assert not attack.followed("twice", attack.others).holds
    assert not attack.followed("twice", attack.nothing).holds
