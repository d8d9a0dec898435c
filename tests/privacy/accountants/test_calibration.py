"""The least noise that keeps a budget."""

import math
import time
from dataclasses import replace

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.privacy.accountants import Charge, account
from dpbnn.privacy.accountants.calibration import least_noise
from dpbnn.privacy.plan import PrivacyPlan

PAPER = {"dataset_size": 60_000, "batch_size": 256, "steps": 3515, "clip_norm": 1.5, "delta": 1e-5}


@pytest.mark.parametrize(("epsilon", "noise"), [(0.5, 1.937), (1.0, 1.1851), (3.0, 0.7282), (8.0, 0.5465)])
def test_noise_for_a_target_comes_out(epsilon, noise):
    start = time.process_time()
    calibrated = PrivacyPlan.for_budget(epsilon=epsilon, **PAPER)
    assert time.process_time() - start < 4
    assert calibrated.noise_multiplier == pytest.approx(noise, abs=1e-3)


@pytest.mark.guarantees("The calibrated plan keeps its budget.")
@pytest.mark.parametrize(
    ("epsilon", "changes"),
    [
        (1.0, {}),
        pytest.param(0.02, {}, marks=pytest.mark.slow),
        pytest.param(40.0, {}, marks=pytest.mark.slow),
        (2.0, {"dataset_size": 500, "batch_size": 500, "steps": 20}),
        pytest.param(1.0, {"max_records_per_person": 3}, marks=pytest.mark.slow),
        (1.0, {"adjacency": "replace_one"}),
        pytest.param(1.0, {"dataset_size": 1_000_000, "batch_size": 1, "steps": 1}, marks=pytest.mark.slow),
    ],
)
def test_the_calibrated_plan_keeps_its_budget(epsilon, changes):
    calibrated = PrivacyPlan.for_budget(epsilon=epsilon, **PAPER | changes)
    adjacency = changes.get("adjacency", "add_or_remove")
    assert calibrated.epsilon(adjacency=adjacency) <= epsilon


@pytest.mark.guarantees("A little less noise would break the budget.")
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_a_little_less_noise_would_break_the_budget(epsilon):
    calibrated = PrivacyPlan.for_budget(epsilon=epsilon, **PAPER)
    less = replace(calibrated, noise_multiplier=calibrated.noise_multiplier * 0.9999)
    assert less.epsilon() > epsilon


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0, got 0.0"),
        ({"epsilon": -1}, "epsilon must be > 0, got -1"),
        ({"epsilon": math.inf}, "epsilon must be a finite number, got inf"),
        ({"epsilon": 5000.0}, "epsilon must be at most 1000 .*without_privacy.* got 5000.0"),
        ({"epsilon": 1e-3, "delta": 1e-13}, "epsilon must be above .* no noise level reaches less .* got 0.001"),
        ({"delta": 0.0}, "delta must be > 0 and < 1"),
        ({"batch_size": 60_001}, "batch_size must be at most dataset_size"),
        ({"adjacency": "swap"}, "adjacency must be one of"),
    ],
)
def test_an_absurd_budget_is_refused(changes, message):
    with pytest.raises(DpbnnError, match=message):
        PrivacyPlan.for_budget(**{"epsilon": 1.0} | PAPER | changes)


def test_a_budget_that_what_was_bought_exceeds_is_refused():
    settings = {"dataset_size": 100, "batch_size": 50, "steps": 10, "clip_norm": 1.0, "delta": 1e-5}
    with pytest.raises(DpbnnError, match=r"epsilon must be above 0\.6"):
        PrivacyPlan.for_budget(epsilon=0.5, pure_epsilons=(0.6,), **settings)


@pytest.mark.parametrize(
    ("charge", "epsilon"),
    [
        (Charge(1.0, ((1.0, 100),), 1e-5, records_per_person=3), 2.0),
        (Charge(1.0, ((1.0, 30),), 1e-6, pure_epsilons=(0.05, 0.1)), 1.0),
        (Charge(1.0, ((1.0, 30),), 1e-6, adjacency="replace_one"), 1.0),
    ],
)
def test_the_noise_of_the_charge_does_not_matter_and_its_other_settings_do(charge, epsilon):
    noise = least_noise(charge, epsilon)
    assert least_noise(replace(charge, noise_levels=((7.0, 10), (0.3, charge.steps - 10))), epsilon) == noise
    spent = [account(replace(charge, noise_levels=((own, charge.steps),))).epsilon for own in (noise, noise * 0.9999)]
    assert spent[0] <= epsilon < spent[1]
    plain = Charge(charge.sampling_rate, charge.noise_levels, charge.delta)
    assert least_noise(plain, epsilon) < 0.99 * noise
