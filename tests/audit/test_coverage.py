"""What the audit looks at: all pairs of settings, each once even if quick, and said in words and figures."""

from dataclasses import astuple, replace
from itertools import combinations, product

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.audit.cases import COVERING, FOR_QUICK, cases_of, variations_of
from dpbnn.audit.claim import Level, epsilon_shown, levels_of, repeated
from dpbnn.audit.coverage import coverage_of
from dpbnn.audit.mechanism import audit_mechanism
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.privacy.noise.randomness import CHUNK
from dpbnn.privacy.plan import CLIPPING_STYLES

PLAN = dpbnn.PrivacyPlan(dataset_size=100, batch_size=100, steps=4, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)
TWO_LEVELS = {"noise_multiplier": ((1.3, 2), (2.0, 2)), "clip_norm": ((1.5, 1), (0.7, 3))}
EMPTY = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)


def attack(plan=PLAN, model=None, **how):
    return audit_mechanism(model or nn.Linear(5, 3), dpbnn.Categorical(), *EMPTY, plan, observations=4_000, **how)


def test_any_two_settings_meet_and_a_quick_audit_has_each_of_them():
    rows = [astuple(own) for own in COVERING]
    values = [set(column) for column in zip(*rows, strict=True)]
    assert values == [set(CLIPPING_STYLES), {1, 2}, {1, 3}, {True, False}, {True, False}, {True, False}]
    for first, second in combinations(range(len(values)), 2):
        met = {(row[first], row[second]) for row in rows}
        assert met == set(product(values[first], values[second]))
    assert [set(column) for column in zip(*map(astuple, FOR_QUICK), strict=True)] == values


@pytest.mark.parametrize("variation", COVERING, ids=lambda own: own.name)
@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, **TWO_LEVELS, max_records_per_person=7, clipping="automatic")])
def test_a_variation_is_what_it_says_whatever_the_plan_is(variation, plan):
    case = variation.case(plan)
    assert case.plan.clipping == variation.clipping
    assert case.plan.max_records_per_person == variation.rows_per_person
    assert len(levels_of(case.plan)) == variation.levels
    assert (sum(own.numel() for own in case.model.parameters()) > CHUNK) == variation.is_wide
    assert (case.how.get("others", 20) + variation.rows_per_person > LARGEST_PART) == variation.is_large_batch
    method = case.how.get("method")
    assert (method is not None and method.form == "joint") == variation.is_joint


def test_a_plan_of_one_step_and_one_record_can_be_varied():
    tiny = replace(PLAN, dataset_size=1, batch_size=1, steps=1, pure_epsilons=(0.1,))
    assert all(case.plan.epsilon() > 0 for case in variations_of(tiny, quick=False))


@pytest.mark.guarantees("A plan is attacked as it is: with its clipping style, levels and rows per person.")
def test_a_plan_is_attacked_as_it_is():
    plan = replace(PLAN, **TWO_LEVELS, max_records_per_person=2, clipping="automatic")
    for quick in (True, False):
        assert all(case.plan is plan for case in cases_of(plan, quick))
    found = attack(plan)
    assert (found.clipping, found.levels, found.rows_per_person) == ("automatic", 3, 2)
    assert found.holds, found.checks
    assert found.claimed_epsilon == plan.epsilon()


def test_levels_are_read_off_the_plan_step_by_step():
    plan = replace(PLAN, **TWO_LEVELS)
    assert levels_of(plan) == (Level(1.3, 1.5, 0, 1), Level(1.3, 0.7, 1, 1), Level(2.0, 0.7, 2, 2))
    by_step = [(own.noise, own.clip_norm) for own in levels_of(plan) for _ in range(own.steps)]
    assert by_step == [(plan.noise_at(step), plan.clip_norm_at(step)) for step in range(plan.steps)]
    assert repeated([1.3, 1.3, 2.0], 5) == ((1.3, 10), (2.0, 5))
    assert repeated([1.3, 1.3], 5) == 1.3


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


@pytest.mark.guarantees("Pairs of settings that did not meet are counted and named.")
def test_pairs_that_did_not_meet_are_counted_and_named():
    attacks = [attack(), attack(replace(PLAN, clipping="automatic", max_records_per_person=3))]
    found = coverage_of(attacks, leaves_out=["what is slow"])
    assert found.looked_at["clipping"] == ("automatic", "flat")
    assert found.looked_at["rows_per_person"] == (1, 3)
    assert found.looked_at["records"] == (21, 23)
    assert found.pairs == 60
    assert ("flat", "several rows") in found.pairs_not_met
    assert ("automatic", "several rows") not in found.pairs_not_met
    assert ("flat", "joint BBP") in found.pairs_not_met
    met = {
        frozenset(pair) for kinds in (("flat", "one row"), ("automatic", "several rows")) for pair in pairs_of(kinds)
    }
    assert len(found.pairs_not_met) == 60 - len(met)
    text = str(found)
    assert "batches of 21 and 23 records; networks of 18 weights." in text
    assert "Looked at: automatic and flat clipping; 1 level of noise and clip norm; 1 and 3 rows per person" in text
    assert "Not looked at: your records and your network; more than 23 records in a batch; more than 18 weights" in text
    assert "what is slow" in text
    assert f"{len(found.pairs_not_met)} of 60 pairs of these settings at the same time." in text


def pairs_of(kinds):
    """Of an attack on one level with ordinary gradients, a small batch and a small network."""
    return combinations([*kinds, "one level", "ordinary", "a small batch", "a small network"], 2)
