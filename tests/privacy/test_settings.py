"""From the settings that a user has to a complete plan."""

import math
from dataclasses import replace

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.settings import Given, complete

DRAFT = PrivacyPlan(60_000, 256, 3515, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
SGLD = {"clip_norm": 1.5, "learning_rate": 5e-6, "temperature": 0.5, "noise_multiplier": 1.2720742271998804}


def completed(method="sgd", draft=DRAFT, **given):
    return complete(method, draft, Given(**given), {"sgd": False, "sgld": True, "bbp": False})


def four(settings):
    plan = settings.plan
    return {
        "clip_norm": plan.clip_norm,
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
        "noise_multiplier": plan.noise_multiplier,
    }


@pytest.mark.guarantees("Any three of the four SGLD settings give the fourth.")
@pytest.mark.parametrize("missing", SGLD)
def test_any_three_of_the_four_sgld_settings_give_the_fourth(missing):
    three = {name: value for name, value in SGLD.items() if name != missing}
    assert four(completed("sgld", **three)) == pytest.approx(SGLD, rel=1e-9)
    assert four(completed("sgld", **SGLD)) == pytest.approx(SGLD, rel=1e-9)


def test_the_clip_norm_and_the_noise_of_the_draft_do_not_matter():
    draft = replace(DRAFT, clip_norm=7.0, noise_multiplier=0.3)
    for method, given in (
        ("sgd", {"noise_multiplier": 2.0}),
        ("sgld", {"clip_norm": 1.5, "epsilon": 1.0, "learning_rate": 5e-6}),
    ):
        assert completed(method, draft, **given) == completed(method, DRAFT, **given)


def test_sgd_has_an_implied_temperature():
    settings = completed(noise_multiplier=1.3, clip_norm=1.5, learning_rate=0.25)
    assert settings.temperature == pytest.approx(0.25 * 60_000 * (1.3 * 1.5 / 256) ** 2 / 2)
    assert completed("bbp", noise_multiplier=1.3, learning_rate=0.25).temperature is None


def test_sgld_takes_a_budget_for_the_noise():
    settings = completed("sgld", epsilon=0.9, clip_norm=1.5, temperature=0.5)
    assert settings.learning_rate == pytest.approx(5e-6, rel=0.02)
    implied = math.sqrt(2 * 0.5 / settings.learning_rate) * 256 / (60_000 * 1.5)
    assert settings.plan.noise_multiplier == pytest.approx(implied)
    assert 0.899 < settings.plan.epsilon() <= 0.9


def test_a_hotter_chain_than_the_budget_needs_is_simply_more_private():
    settings = completed("sgld", epsilon=1.0, clip_norm=1.5, temperature=0.5, learning_rate=5e-6)
    assert settings.plan.epsilon() == pytest.approx(0.8937, abs=1e-4)


@pytest.mark.guarantees("Contradicting settings are refused.")
@pytest.mark.parametrize("asked", [{"epsilon": 0.5}, {"noise_multiplier": 1.3}, {"noise_multiplier": 1.25}])
def test_contradicting_settings_are_refused(asked):
    with pytest.raises(DpbnnError) as error:
        completed("sgld", clip_norm=1.5, learning_rate=5e-6, temperature=0.5, **asked)
    for way_out in ("drop one of the four", "temperature", "learning_rate", "clip_norm"):
        assert way_out in str(error.value)


@pytest.mark.parametrize("name", ["temperature", "learning_rate", "clip_norm"])
def test_the_ways_out_of_a_contradiction_lead_out(name):
    given = {own: value for own, value in SGLD.items() if own != "noise_multiplier"} | {"epsilon": 0.5}
    with pytest.raises(DpbnnError) as error:
        completed("sgld", **given)
    value = float(str(error.value).split("drop one of the four, ")[1].split(f"{name} ")[1].split(",")[0].rstrip("."))
    enough = value * (1.00001 if name == "temperature" else 0.99999)
    assert completed("sgld", **given | {name: enough}).plan.epsilon() <= 0.5001


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("sgd", {}, "noise_multiplier or epsilon must be given, got neither"),
        ("sgd", {"epsilon": 1.0, "noise_multiplier": 1.0}, "must not both be given"),
        ("sgd", {"noise_multiplier": -1.0}, "noise_multiplier must be > 0, got -1.0"),
        ("sgd", {"epsilon": 1.0, "temperature": 1.0}, "temperature must be given for sgld only, got 1.0 for sgd"),
        ("vi", {"epsilon": 1.0}, "method must be one of 'sgd', 'sgld', 'bbp', got 'vi'"),
        ("sgld", {"epsilon": 1.0, "clip_norm": 1.0}, "at least two of .*, got clip_norm;"),
        ("sgld", {"temperature": 1.0, "clip_norm": 1.0}, "or epsilon, from which learning_rate follows"),
    ],
)
def test_settings_that_are_not_enough_or_too_many_are_refused_with_the_remedy(method, given, message):
    with pytest.raises(DpbnnError, match=message):
        completed(method, **given)
