"""The plan: checked, frozen, and charged exactly for what it says."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import UnsupportedEventError
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant

from dpbnn.errors import DpbnnError
from dpbnn.privacy.plan import PrivacyPlan

PAPER = {
    "dataset_size": 60_000,
    "batch_size": 256,
    "steps": 3515,
    "clip_norm": 1.5,
    "noise_multiplier": 1.3,
    "delta": 1e-5,
}
SMALL = PAPER | {"dataset_size": 1000, "batch_size": 10, "steps": 100}


def plan(base=SMALL, **changes):
    return PrivacyPlan(**base | changes)


def test_the_paper_costs_what_the_spec_says():
    assert plan(PAPER).epsilon() == pytest.approx(0.8645, abs=2e-4)
    assert plan(PAPER).epsilon("rdp") == pytest.approx(0.9544, abs=2e-4)
    assert plan(PAPER).epsilon("gdp") == pytest.approx(0.8344, abs=2e-4)
    assert plan(PAPER).epsilon(adjacency="replace_one") == pytest.approx(1.555, abs=1e-3)
    assert plan(PAPER, max_records_per_person=2).epsilon() == pytest.approx(1.86, abs=5e-3)


def test_the_account_names_its_accountant():
    assert plan(PAPER).account().accountant == "pld"
    assert "approximation" in plan(PAPER).account("gdp").remark


@pytest.mark.guarantees("Epsilon falls with noise and delta and grows with rate and steps.")
@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp", None])
def test_epsilon_falls_with_noise_and_delta_and_grows_with_rate_and_steps(accountant):
    middle = plan().epsilon(accountant)
    for dearer in ({"noise_multiplier": 1.2}, {"delta": 1e-6}, {"batch_size": 11}, {"steps": 110}):
        assert plan(**dearer).epsilon(accountant) > middle
    for cheaper in ({"noise_multiplier": 1.4}, {"delta": 1e-4}, {"batch_size": 9}, {"steps": 90}):
        assert plan(**cheaper).epsilon(accountant) < middle
    for free in ({"clip_norm": 7.0}, {"clipping": "automatic"}):
        assert plan(**free).epsilon(accountant) == middle


@pytest.mark.guarantees("Two equal runs cost what one costs.")
def test_two_equal_runs_cost_what_one_costs():
    runs = plan(noise_multiplier=[(1.3, 30), (1.3, 70)])
    assert runs.noise_levels == ((1.3, 100),)
    assert runs.epsilon() == plan().epsilon()


def test_runs_that_come_back_to_a_level_are_merged():
    runs = plan(noise_multiplier=[(1.0, 30), (2.0, 40), (1.0, 30)])
    assert runs.noise_levels == ((1.0, 60), (2.0, 40))
    assert runs.epsilon() == plan(noise_multiplier=[(1.0, 60), (2.0, 40)]).epsilon()


def test_runs_cost_between_their_least_and_most_noise():
    runs = plan(noise_multiplier=[(1.0, 50), (2.0, 50)]).epsilon()
    assert plan(noise_multiplier=2.0).epsilon() < runs < plan(noise_multiplier=1.0).epsilon()


def test_the_first_steps_cost_what_a_shorter_plan_costs():
    runs = plan(noise_multiplier=[(1.0, 50), (2.0, 50)])
    assert runs.epsilon(steps=0) == 0.0
    assert runs.epsilon(steps=50) == plan(noise_multiplier=1.0, steps=50).epsilon()
    shorter = plan(noise_multiplier=[(1.0, 50), (2.0, 20)], steps=70)
    assert runs.epsilon(steps=70) == shorter.epsilon()
    assert runs.epsilon(steps=100) == runs.epsilon()
    with pytest.raises(DpbnnError, match="steps must be at most the plan's 100, got 101"):
        runs.epsilon(steps=101)


def test_each_step_knows_its_noise_and_clip_norm():
    runs = plan(noise_multiplier=[(1.0, 30), (2.0, 70)], clip_norm=[(3.0, 99), (4.0, 1)])
    assert [runs.noise_at(step) for step in (0, 29, 30, 99)] == [1.0, 1.0, 2.0, 2.0]
    assert [runs.clip_norm_at(step) for step in (0, 98, 99)] == [3.0, 3.0, 4.0]
    assert plan().noise_at(99) == 1.3
    for method in (runs.noise_at, runs.clip_norm_at):
        with pytest.raises(DpbnnError, match="step must be below the plan's 100 steps, got 100"):
            method(100)
        with pytest.raises(DpbnnError, match="step must be >= 0"):
            method(-1)


def test_a_plan_is_frozen_hashable_and_made_of_plain_numbers():
    from_numpy = plan(
        dataset_size=np.int64(1000),
        noise_multiplier=np.float32(1.5),
        clip_norm=[[2, np.int32(40)], (3.0, 60)],
    )
    assert from_numpy == plan(noise_multiplier=1.5, clip_norm=((2.0, 40), (3.0, 60)))
    assert hash(from_numpy) == hash(plan(noise_multiplier=1.5, clip_norm=((2.0, 40), (3.0, 60))))
    assert type(from_numpy.dataset_size) is int
    assert type(from_numpy.noise_multiplier) is float
    with pytest.raises(AttributeError):
        from_numpy.steps = 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset_size": 0}, "dataset_size must be >= 1, got 0"),
        ({"dataset_size": 10.5}, "dataset_size must be a whole number, got 10.5"),
        ({"dataset_size": True}, "dataset_size must be a whole number, got True"),
        ({"batch_size": 1001}, r"batch_size must be at most dataset_size \(1000\), got 1001"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"clip_norm": -1.0}, "clip_norm must be > 0, got -1.0"),
        ({"clip_norm": math.inf}, "clip_norm must be a finite number, got inf"),
        ({"clip_norm": "1"}, "clip_norm must be a finite number, got '1'"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0, got 0.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be a finite number, got nan"),
        ({"noise_multiplier": []}, "runs of noise_multiplier must be 1 to 64 pairs"),
        ({"noise_multiplier": [(1.0, 1)] * 65}, "runs of noise_multiplier must be 1 to 64 pairs"),
        (
            {"noise_multiplier": [(1.0, 99)]},
            "steps in the runs of noise_multiplier must be 100 in all.* got 99",
        ),
        ({"noise_multiplier": [1.0, 99]}, "a run of noise_multiplier must be a pair"),
        ({"noise_multiplier": [(0.0, 100)]}, "noise_multiplier must be > 0, got 0.0"),
        ({"delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
        ({"delta": 1}, "delta must be > 0 and < 1, got 1"),
        ({"clipping": "none"}, "clipping must be one of 'flat', 'automatic', got 'none'"),
        ({"max_records_per_person": 0}, "max_records_per_person must be >= 1, got 0"),
        ({"max_records_per_person": 1001}, r"max_records_per_person must be at most dataset_size \(1000\)"),
        ({"noise_multiplier": 0.0, "clip_norm": math.inf}, "clip_norm must be a finite number, got inf"),
    ],
)
def test_a_wrong_plan_is_refused_with_the_value_that_came(changes, message):
    with pytest.raises(DpbnnError, match=message):
        plan(**changes)


def test_unknown_words_are_refused():
    with pytest.raises(
        DpbnnError, match="adjacency must be one of 'add_or_remove', 'zero_out', 'replace_one', got 'swap'"
    ):
        plan().epsilon(adjacency="swap")
    with pytest.raises(DpbnnError, match="accountant must be one of 'pld', 'rdp', 'gdp', got 'prv'"):
        plan().epsilon("prv")


@pytest.mark.guarantees("A plan without privacy has infinite epsilon.")
def test_a_plan_without_privacy_has_infinite_epsilon():
    public = PrivacyPlan.without_privacy(dataset_size=10, batch_size=2, steps=3)
    assert not public.is_private
    assert public.epsilon() == math.inf
    assert public.epsilon("rdp") == math.inf
    assert public.epsilon(steps=0) == 0.0
    assert (public.clip_norm_at(2), public.noise_at(2)) == (math.inf, 0.0)
    assert public.dp_event() == dp_accounting.NonPrivateDpEvent()


def test_the_event_says_what_is_released():
    gaussian = dp_accounting.GaussianDpEvent
    sampled = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.01, gaussian(1.3)), 100)
    assert plan().dp_event() == sampled
    assert plan(batch_size=1000).dp_event() == dp_accounting.SelfComposedDpEvent(gaussian(1.3), 100)
    runs = plan(noise_multiplier=[(1.0, 60), (2.0, 40)]).dp_event()
    assert [run.count for run in runs.events] == [60, 40]
    two = plan(max_records_per_person=2).dp_event().event
    assert isinstance(two, MixtureOfGaussiansDpEvent)
    assert list(two.sensitivities) == [0.0, 1.0, 2.0]
    assert list(two.sampling_probs) == pytest.approx([0.99**2, 2 * 0.99 * 0.01, 0.01**2])


@pytest.mark.guarantees("JSON gives the same plan back.")
@pytest.mark.parametrize(
    "original",
    [
        plan(PAPER),
        plan(clipping="automatic", max_records_per_person=3),
        plan(noise_multiplier=[(1.0, 30), (2.0, 70)], clip_norm=[(3.0, 99), (4.0, 1)]),
        PrivacyPlan.without_privacy(dataset_size=10, batch_size=2, steps=3),
    ],
)
def test_json_gives_the_same_plan_back(original):
    text = original.to_json()
    assert json.loads(text)["version"] == 1
    assert "Infinity" not in text
    assert PrivacyPlan.from_json(text) == original


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"version": 3}, "version of PrivacyPlan must be 1 or 2.* got 3"),
        ({"version": None}, "version of PrivacyPlan must be 1 or 2.* got None"),
        ({"version": []}, r"version of PrivacyPlan must be 1 or 2.* got \[\]"),
        ({"colour": "red"}, r"got unknown \['colour'\]"),
        ({"steps": -5}, "steps must be >= 1, got -5"),
        ({"clip_norm": None}, "clip_norm must be a finite number, got inf"),
        ({"noise_multiplier": {}}, "noise_multiplier must be a finite number"),
        ({"noise_multiplier": 10**400}, "noise_multiplier must be a finite number, got a int"),
    ],
)
def test_json_that_is_not_a_plan_is_refused(edit, message):
    with pytest.raises(DpbnnError, match=message):
        PrivacyPlan.from_json(json.dumps(json.loads(plan().to_json()) | edit))


def test_json_with_a_field_missing_is_refused():
    values = json.loads(plan().to_json())
    del values["delta"]
    with pytest.raises(DpbnnError, match=r"PrivacyPlan must have the fields .* got missing \['delta'\]"):
        PrivacyPlan.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '{"version": 1, "delta": NaN}', None])
def test_text_that_is_no_json_object_is_refused(text):
    with pytest.raises(DpbnnError, match="PrivacyPlan must be"):
        PrivacyPlan.from_json(text)


def test_a_plan_is_made_without_loading_the_accounting_libraries():
    script = (
        "import sys; from dpbnn.privacy.plan import PrivacyPlan; "
        "PrivacyPlan(100, 10, 5, 1.0, 1.0, 1e-3); print({'scipy', 'dp_accounting'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


BOUGHT = {"pure_epsilons": (0.01,) * 8 + (0.1,)}


def test_what_was_bought_before_the_run_is_charged_with_it():
    settings = {"dataset_size": 10_000, "batch_size": 500, "steps": 100, "clip_norm": 1.0, "delta": 1e-5}
    free, paid = (PrivacyPlan.for_budget(epsilon=1.0, **settings, **more) for more in ({}, BOUGHT))
    assert paid.epsilon() <= 1.0
    assert paid.noise_multiplier > free.noise_multiplier
    assert replace(paid, noise_multiplier=free.noise_multiplier).epsilon() > 1.0
    assert PrivacyPlan.from_json(paid.to_json()) == paid
    assert json.loads(paid.to_json())["version"] == 2
    assert paid.epsilon(steps=0) == pytest.approx(0.18)
    with pytest.raises(UnsupportedEventError):
        PLDAccountant().compose(paid.dp_event())


@pytest.mark.parametrize("wrong", [0.1, "0.1", (0.0,), (-1.0,), (math.nan,), ("a",), (True,)])
def test_pure_epsilons_are_checked(wrong):
    settings = {"dataset_size": 100, "batch_size": 50, "steps": 10, "clip_norm": 1.0, "delta": 1e-5}
    with pytest.raises(DpbnnError, match="pure_epsilons"):
        PrivacyPlan(noise_multiplier=1.0, pure_epsilons=wrong, **settings)
