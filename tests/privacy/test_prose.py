"""The guarantee in words: precise, complete, and never less careful than the figures."""

import json
import math
import re
from dataclasses import replace

import pytest

from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.privacy.plan import PrivacyPlan
from tests.privacy.test_guarantee import PLAN, PUBLIC, WEAK


@pytest.mark.parametrize(
    "phrase",
    [
        "epsilon = 0.8645",
        "delta = 1e-05",
        "2.38 times as likely",  # e^0.8645 = 2.374, rounded up
        "one record is added or removed",
        "epsilon would be 1.5553",
        "PLD",
        "60000 is a public number",
        "no person has more than 1 record;",
        "initial weights",
        "data holder only",
        "random generators",
        "floating-point",
        "timing",
        "search over settings",
        "operating system",
    ],
)
def test_the_prose_says_what_an_officer_must_know(phrase):
    assert phrase in str(PrivacyGuarantee.for_plan(PLAN))


def test_the_prose_does_not_round_epsilon_down_again():
    guarantee = PrivacyGuarantee.for_plan(WEAK)
    assert f"epsilon = {guarantee.epsilon} " in str(guarantee)
    assert len(str(guarantee.epsilon)) > 6


def test_the_prose_is_one_paragraph():
    assert "\n" not in str(PrivacyGuarantee.for_plan(PLAN))


def test_a_weak_promise_is_called_weak():
    text = str(PrivacyGuarantee.for_plan(WEAK))
    assert "weak promise" in text
    assert "Delta is at least 1/100" in text
    assert "one person with at most 2 records" in text
    for caution in ("weak", "Delta is at least"):
        assert caution not in str(PrivacyGuarantee.for_plan(PLAN))


@pytest.mark.guarantees("A voided guarantee says so first.")
@pytest.mark.parametrize(
    "guarantee",
    [
        PrivacyGuarantee.for_plan(PLAN, voided_by=["the noise was seeded by the user"]),
        PrivacyGuarantee.for_plan(PUBLIC),
    ],
)
def test_a_voided_guarantee_says_so_first(guarantee):
    assert not guarantee.holds
    assert str(guarantee).startswith("There is no privacy guarantee: ")
    assert not json.loads(guarantee.to_json())["holds"]


def test_a_voided_guarantee_names_the_reasons():
    text = str(PrivacyGuarantee.for_plan(PLAN, voided_by=["the noise was seeded", "diagnostics were shown"]))
    assert "the noise was seeded; diagnostics were shown" in text


def test_further_assumptions_join_the_usual_ones():
    guarantee = PrivacyGuarantee.for_plan(PLAN, assumptions=["the labels are public"])
    assert len(guarantee.assumptions) == len(PrivacyGuarantee.for_plan(PLAN).assumptions) + 1
    assert "the labels are public." in str(guarantee)


@pytest.mark.parametrize("delta", [1 / 3_000_000, 2.0000004e-6])
def test_the_prose_says_no_other_delta_than_the_plans(delta):
    plan = replace(PLAN, delta=delta)
    texts = [str(PrivacyGuarantee.for_plan(plan, voided_by=reasons)) for reasons in ((), ["a reason"])]
    for text in texts:
        said = re.findall(r"delta = (\S+)", text) + re.findall(r"probability of ([^,]+),", text)
        assert [float(number.rstrip(".")) for number in said] == [delta] * len(said) != []


@pytest.mark.parametrize("noise", [0.2, 0.35, 0.9, 3.0, 40.0])
def test_the_factor_by_which_probabilities_differ_is_rounded_up(noise):
    guarantee = PrivacyGuarantee.for_plan(replace(WEAK, noise_multiplier=noise))
    factor = re.search(r"more than (\S+) times as likely", str(guarantee))
    if guarantee.epsilon > 700:
        assert factor is None
        return
    exact = math.exp(guarantee.epsilon)
    assert exact <= float(factor[1]) <= max(exact * 1.12, exact + 0.011)


def test_what_was_bought_is_never_said_to_cost_less_than_it_does():
    bought = PrivacyPlan(1000, 100, 10, 1.0, 5.0, 1e-5, max_records_per_person=3, pure_epsilons=(33.333371, 7.00001))
    said = re.search(
        r"2 releases without delta .*, of epsilon (\S+) in all", PrivacyGuarantee.for_plan(bought).mechanism
    )
    assert 3 * sum(bought.pure_epsilons) <= float(said[1]) < 3 * sum(bought.pure_epsilons) + 1e-3
