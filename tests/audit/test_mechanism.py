"""Attacks on single steps: near the claim, never above it by more than chance, for every kind of plan and method."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.audit import audit_mechanism
from dpbnn.audit.cases import targets_of
from dpbnn.audit.claim import epsilon_shown

PLAN = dpbnn.PrivacyPlan(dataset_size=100, batch_size=100, steps=4, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)
TWO_LEVELS = {"noise_multiplier": ((1.3, 2), (2.0, 2)), "clip_norm": ((1.5, 1), (0.7, 3))}
EMPTY = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)


def attack(plan=PLAN, model=None, **how):
    return audit_mechanism(model or nn.Linear(5, 3), dpbnn.Categorical(), *EMPTY, plan, observations=4_000, **how)


def test_a_hundred_thousand_numbers_show_most_of_the_claimed_epsilon():
    empty = torch.zeros(0, 20), torch.zeros(0, dtype=torch.long)
    found = audit_mechanism(nn.Linear(20, 3), dpbnn.Categorical(), *empty, PLAN, observations=100_000)
    assert found.holds
    assert found.observations >= 100_000
    assert 0.8 * found.claimed_epsilon < found.epsilon < found.claimed_epsilon * 1.01
    assert found.noise_multiplier[0] < 1.3 * 1.005 * 1.01
    assert found.noise_multiplier[1] > 1.3 * 0.995


@pytest.mark.parametrize(
    "method", [dpbnn.SGLD(1e-4), dpbnn.BBP(0.1), dpbnn.MCDropout(0.1)], ids=lambda method: type(method).__name__
)
def test_single_steps_of_every_method_can_be_attacked(method):
    model = dpbnn.networks.MLP(5, [8], 3, "tanh", 0.1 if isinstance(method, dpbnn.MCDropout) else 0.0)
    empty = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    found = audit_mechanism(model, dpbnn.Categorical(), *empty, PLAN, method=method, observations=20_000)
    assert found.holds
    assert found.epsilon > 0.8 * found.claimed_epsilon


@pytest.mark.guarantees("A plan is attacked as it is: with its clipping style, levels and rows per person.")
def test_a_plan_is_attacked_as_it_is():
    plan = replace(PLAN, **TWO_LEVELS, max_records_per_person=2, clipping="automatic")
    for quick in (True, False):
        assert all(target.plan is plan for target in targets_of(plan, quick).values())
    found = attack(plan)
    assert (found.clipping, found.levels, found.rows_per_person) == ("automatic", 3, 2)
    assert found.holds, found.checks
    assert found.claimed_epsilon == plan.epsilon()


@pytest.mark.slow
def test_as_many_levels_as_a_plan_may_have_are_attacked_and_little_is_lost_by_it():
    noise = tuple((4.0 + 0.02 * level, 2) for level in range(64))
    norm = ((1.5, 1), *((1.5 + 0.01 * level, 2) for level in range(1, 63)), (0.7, 3))
    plan = replace(PLAN, batch_size=10, steps=128, noise_multiplier=noise, clip_norm=norm)
    found = attack(plan, confidence=0.999)
    assert found.levels == 127
    assert found.holds, found.checks
    assert 0.8 * plan.epsilon() < found.epsilon < 1.01 * plan.epsilon()


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_person_with_several_rows_is_shown_nearly_what_is_claimed_and_no_more(rows, rate):
    sized = {"batch_size": round(100 * rate), "steps": 5, "noise_multiplier": 4.0}
    plan = replace(PLAN, max_records_per_person=rows, **sized)
    found = attack(plan, confidence=0.999)
    assert found.holds, found.checks
    assert rows * 0.99 < found.furthest <= rows
    assert 0.8 * plan.epsilon() < found.epsilon < 1.01 * plan.epsilon()
    assert epsilon_shown(plan, 0.5) > plan.epsilon(), "with half the noise it would be seen"


@pytest.mark.gpu
def test_captured_steps_on_a_gpu_can_be_attacked():
    empty = torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)
    model = dpbnn.networks.MLP(6, [16], 3).cuda()
    found = audit_mechanism(model, dpbnn.Categorical(), *empty, PLAN, observations=100_000)
    assert found.holds, found.checks
    assert found.epsilon > 0.8 * found.claimed_epsilon
