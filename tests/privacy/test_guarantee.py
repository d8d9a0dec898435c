"""The guarantee: rounded against us, complete, and readable."""

import json
import math
import re

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.privacy.guarantee import PrivacyGuarantee, rounded_up
from dpbnn.privacy.plan import PrivacyPlan

PLAN = PrivacyPlan(dataset_size=60_000, batch_size=256, steps=3515, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)
WEAK = PrivacyPlan(
    dataset_size=100,
    batch_size=100,
    steps=30,
    clip_norm=1.0,
    noise_multiplier=0.9,
    delta=0.01,
    max_records_per_person=2,
)
PUBLIC = PrivacyPlan.without_privacy(dataset_size=10, batch_size=2, steps=3)


@pytest.mark.guarantees("Epsilon is rounded up, never down.")
@pytest.mark.parametrize("noise", [0.9, 1.2345, 1.3, 2.0, 77.0, 1e4])
def test_epsilon_is_rounded_up_never_down(noise):
    plan = PrivacyPlan(60_000, 256, 300, 1.5, noise, 1e-9)
    guarantee = PrivacyGuarantee.for_plan(plan)
    said = float(re.search(r"epsilon = (\S+)", str(guarantee))[1])
    assert said == guarantee.epsilon > 0
    assert plan.epsilon() <= guarantee.epsilon < plan.epsilon() + 1.0001e-4
    assert guarantee.epsilon < plan.epsilon() * 1.0015


@pytest.mark.parametrize("epsilon", [5e-324, 1e-310, 1e-300, 0.0, math.inf])
def test_epsilons_at_the_ends_of_float64_are_rounded_up_too(epsilon):
    assert rounded_up(epsilon) >= epsilon
    assert rounded_up(epsilon) <= max(epsilon * 1.002, 1e-307)


def test_a_guarantee_holds_everything_that_gives_epsilon_a_meaning():
    guarantee = PrivacyGuarantee.for_plan(PLAN)
    assert guarantee.holds
    assert (guarantee.epsilon, guarantee.delta, guarantee.accountant) == (0.8645, 1e-5, "pld")
    assert guarantee.epsilon_by_accountant == pytest.approx({"pld": 0.8645, "rdp": 0.9545})
    assert guarantee.epsilon_replace_one == pytest.approx(1.5553)
    assert (guarantee.adjacency, guarantee.unit) == ("add_or_remove", "one record")
    assert "Poisson" in guarantee.sampling
    assert "all iterates" in guarantee.released
    assert guarantee.plan == PLAN


@pytest.mark.guarantees("An approximation is never part of a guarantee.")
def test_an_approximation_is_never_part_of_a_guarantee():
    with pytest.raises(DpbnnError, match="accountant of a guarantee must be one of 'pld', 'rdp', got 'gdp'"):
        PrivacyGuarantee.for_plan(PLAN, accountant="gdp")
    assert "gdp" not in PrivacyGuarantee.for_plan(PLAN).to_json()


def test_rdp_can_be_asked_for():
    guarantee = PrivacyGuarantee.for_plan(PLAN, accountant="rdp")
    assert (guarantee.epsilon, guarantee.accountant) == (0.9545, "rdp")


def test_replacing_can_be_asked_for():
    guarantee = PrivacyGuarantee.for_plan(PLAN, adjacency="replace_one")
    assert guarantee.epsilon == guarantee.epsilon_replace_one == pytest.approx(1.5553)
    assert "is replaced by another" in str(guarantee)


def test_without_noise_epsilon_is_infinite_and_null_in_json():
    guarantee = PrivacyGuarantee.for_plan(PUBLIC)
    assert guarantee.epsilon == math.inf
    assert json.loads(guarantee.to_json())["epsilon"] is None


@pytest.mark.guarantees("JSON gives the same guarantee back.")
@pytest.mark.parametrize(
    "guarantee",
    [
        PrivacyGuarantee.for_plan(PLAN),
        PrivacyGuarantee.for_plan(WEAK, adjacency="replace_one", voided_by=["a reason"]),
        PrivacyGuarantee.for_plan(PUBLIC),
    ],
)
def test_json_gives_the_same_guarantee_back(guarantee):
    again = PrivacyGuarantee.from_json(guarantee.to_json())
    assert again == guarantee
    assert str(again) == str(guarantee)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"version": 7}, "version of PrivacyGuarantee must be 1.* got 7"),
        ({"colour": "red"}, r"got unknown \['colour'\]"),
        ({"holds": False}, "holds must be True, as the other fields say, got False"),
        ({"accountant": "gdp"}, "accountant of a guarantee must be one of 'pld', 'rdp'"),
        ({"plan": 3}, "PrivacyPlan must be a JSON object, got 3"),
        ({"epsilon": "0.8645"}, "epsilon must be a finite number, got '0.8645'"),
        ({"epsilon_by_accountant": [0.8645]}, r"epsilon_by_accountant must be a JSON object, got \[0.8645\]"),
    ],
)
def test_json_that_is_not_a_guarantee_is_refused(edit, message):
    text = json.dumps(json.loads(PrivacyGuarantee.for_plan(PLAN).to_json()) | edit)
    with pytest.raises(DpbnnError, match=message):
        PrivacyGuarantee.from_json(text)


def test_what_is_no_plan_or_no_list_of_reasons_is_refused():
    with pytest.raises(DpbnnError, match="plan must be a PrivacyPlan, got None"):
        PrivacyGuarantee.for_plan(None)
    with pytest.raises(DpbnnError, match="voided_by must be a list of texts, got 'seeded'"):
        PrivacyGuarantee.for_plan(PLAN, voided_by="seeded")


@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", 0.01), ("epsilon_replace_one", 0.5), ("delta", 1e-12), ("unit", "one nation"), ("mechanism", "magic")],
)
def test_figures_that_are_not_the_plans_are_refused(field, value):
    values = json.loads(PrivacyGuarantee.for_plan(PLAN).to_json())
    values[field] = value
    with pytest.raises(DpbnnError, match=f"{field} of a guarantee"):
        PrivacyGuarantee.from_json(json.dumps(values))


def test_a_guarantee_comes_back_where_only_one_accountant_can_replace_a_person():
    plan = PrivacyPlan(
        dataset_size=1809,
        batch_size=873,
        steps=331,
        clip_norm=3.18,
        noise_multiplier=4.38,
        delta=1e-5,
        max_records_per_person=2,
    )
    guarantee = PrivacyGuarantee.for_plan(plan)
    assert guarantee.accountant == "pld"
    assert plan.epsilon("pld", adjacency="replace_one") == math.inf > guarantee.epsilon_replace_one
    assert PrivacyGuarantee.from_json(guarantee.to_json()) == guarantee
