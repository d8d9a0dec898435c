"""Cases: settings of which any two meet, and plans that keep all but the settings they vary."""

from dataclasses import astuple, replace
from itertools import combinations, product

import pytest

from dpbnn.audit.cases import COVERING, FOR_QUICK, variations_of
from dpbnn.audit.claim import levels_of
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.privacy.noise.randomness import CHUNK
from dpbnn.privacy.plan import CLIPPING_STYLES
from tests.audit.test_mechanism import PLAN, TWO_LEVELS


def test_any_two_settings_meet_and_a_quick_audit_has_each_of_them():
    rows = [astuple(variation) for variation in COVERING]
    values = [set(column) for column in zip(*rows, strict=True)]
    assert values == [set(CLIPPING_STYLES), {1, 2}, {1, 3}, {True, False}, {True, False}, {True, False}]
    for first, second in combinations(range(len(values)), 2):
        met = {(row[first], row[second]) for row in rows}
        assert met == set(product(values[first], values[second]))
    assert [set(column) for column in zip(*map(astuple, FOR_QUICK), strict=True)] == values


@pytest.mark.parametrize("variation", COVERING, ids=lambda variation: variation.name)
@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, **TWO_LEVELS, max_records_per_person=7, clipping="automatic")])
def test_a_variation_is_what_it_says_whatever_the_plan_is(variation, plan):
    target = variation.target(plan)
    assert target.plan.clipping == variation.clipping
    assert target.plan.max_records_per_person == variation.rows_per_person
    assert len(levels_of(target.plan)) == variation.levels
    assert (sum(weight.numel() for weight in target.model.parameters()) > CHUNK) == variation.is_wide
    assert (target.others + variation.rows_per_person > LARGEST_PART) == variation.is_large_batch
    assert (getattr(target.method, "form", None) == "joint") == variation.is_joint


def test_a_plan_of_one_step_and_one_record_can_be_varied():
    tiny = replace(PLAN, dataset_size=1, batch_size=1, steps=1, pure_epsilons=(0.1,))
    assert all(target.plan.epsilon() > 0 for target in variations_of(tiny, quick=False).values())
