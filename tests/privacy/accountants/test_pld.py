"""Privacy loss distributions: valid on every grid, tight on the last, and within limits of time and memory."""

import math
import subprocess
import sys
import time
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters
from scipy.stats import binom

from dpbnn.privacy.accountants import Charge, account, pld
from dpbnn.privacy.accountants.event import composed_event
from tests.privacy.accountants.charges import ALMOST_ONE, PAPER_RATE, TABLE, charge, epsilon


def epsilon_by_dp_accounting(wanted, interval):
    relation = {
        "add_or_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[wanted.adjacency]
    peer = PLDAccountant(relation, interval)
    peer.compose(composed_event(replace(wanted, pure_epsilons=())))
    losses = peer._pld
    for own in wanted.pure_epsilons:
        pure = DifferentialPrivacyParameters(wanted.records_changed * own, 0)
        losses = losses.compose(from_privacy_parameters(pure, interval))
    return losses.get_epsilon_for_delta(wanted.delta)


@pytest.mark.guarantees("PLD stays valid at small delta and many steps.")
@pytest.mark.parametrize("delta", [1e-9, 2e-10])
@pytest.mark.parametrize("steps", [10_000, 100_000, 1_000_000])
def test_pld_stays_valid_at_small_delta_and_many_steps(steps, delta):
    assert epsilon("pld", math.sqrt(steps), ALMOST_ONE, steps, delta) >= get_epsilon_gaussian(1.0, delta)


@pytest.mark.guarantees("PLD stays valid at small delta and many steps.")
@pytest.mark.parametrize("delta", [1e-11, 5e-12])
@pytest.mark.parametrize(("own", "count"), [(0.003, 10_000), (0.001, 20_000)])
def test_pld_stays_valid_at_small_delta_and_many_releases_without_delta(own, count, delta):
    """By the binomial distribution of how often randomized response tells the truth."""
    right = np.arange(count + 1)
    losses, weights = (2 * right - count) * own, binom.pmf(right, count, 1 / (1 + math.exp(-own)))

    def exact_delta(epsilon):
        beyond = losses > epsilon
        return weights[beyond] @ -np.expm1(epsilon - losses[beyond])

    bound = epsilon("pld", 1e6, 0.01, 1, delta, pure_epsilons=(own,) * count)
    assert exact_delta(bound) <= delta < exact_delta(0.8 * bound)


def test_without_room_for_rounding_pld_would_be_off_to_either_side(monkeypatch):
    """Which side depends on the machine's FFT; without rounding the grid alone would be good to 0.1 %."""
    monkeypatch.setattr(pld, "_ROUNDING_OF_DELTA", 0.0)
    monkeypatch.setattr(pld, "_ROUNDING_OF_DELTA_PER_STEP", 0.0)
    wanted = charge(3 * math.sqrt(100_000), ALMOST_ONE, 100_000, 1e-12)
    assert abs(pld.account(wanted).epsilon / get_epsilon_gaussian(3.0, 1e-12) - 1) > 0.003


@pytest.mark.guarantees("PLD agrees with dp-accounting.")
@pytest.mark.parametrize(
    "wanted",
    [
        charge(1.3, PAPER_RATE, 3515, 1e-5),
        charge(0.8, 0.001, 1000, 1e-6),
        charge(1.3, PAPER_RATE, 3515, 1e-5, adjacency="replace_one"),
        charge(2.0, 0.3, 20, 1e-3, adjacency="replace_one"),
        charge(4.0, 0.01, 300, 1e-5, records_per_person=2),
        charge(8.0, 1.0, 10, 1e-5, records_per_person=3),
        Charge(0.01, ((1.0, 100), (2.0, 300), (0.9, 7)), 1e-5),
        charge(1.3, PAPER_RATE, 3515, 1e-5, pure_epsilons=(0.02,) * 10 + (0.1,)),
        charge(1.3, PAPER_RATE, 3515, 1e-5, pure_epsilons=(0.1,), adjacency="replace_one"),
        charge(4.0, 0.01, 300, 1e-5, records_per_person=2, pure_epsilons=(0.05, 0.07)),
        charge(8.0, 1.0, 10, 1e-5, records_per_person=3, pure_epsilons=(0.04,) * 3),
        charge(80.0, 1.0, 10, 1e-5, adjacency="replace_one", pure_epsilons=(0.2,)),
    ],
)
def test_pld_agrees_with_dp_accounting(wanted):
    assert account(wanted, "pld").epsilon == pytest.approx(epsilon_by_dp_accounting(wanted, 1e-4), rel=2e-5)


@pytest.mark.guarantees("Two changes are never cheaper than the exact replacement.")
@pytest.mark.parametrize("row", [TABLE[0], TABLE[6]])
def test_two_changes_are_never_cheaper_than_the_exact_replacement(row, monkeypatch):
    exact = charge(*row[:4], adjacency="replace_one")
    by_exchange = pld.account(exact)
    monkeypatch.setattr(pld, "_replaces_exactly", lambda _: False)
    by_two_changes = pld.account(exact)
    assert by_exchange.epsilon <= by_two_changes.epsilon <= 1.6 * by_exchange.epsilon
    assert "removing one and adding another" in by_two_changes.remark


def test_replacing_costs_what_the_spec_says():
    assert epsilon(None, *TABLE[0][:4], adjacency="replace_one") == pytest.approx(1.555, abs=1e-3)


def test_two_records_per_person_cost_more_than_twice_one():
    assert epsilon(None, *TABLE[0][:4], records_per_person=2) == pytest.approx(1.86, abs=5e-3)


def test_several_records_never_cost_more_than_one_record_of_their_joint_norm():
    rate = 1 - (1 - 0.01) ** 3
    jointly = epsilon("pld", 1.5 / 3, rate, 200, 1e-5)
    separately = epsilon("pld", 1.5, 0.01, 200, 1e-5, records_per_person=3)
    assert epsilon("pld", 1.5, 0.01, 200, 1e-5) < separately < jointly


def test_the_grid_is_refined_where_the_usual_one_is_too_coarse():
    wanted = charge(5.0, 1e-4, 1_000_000, 1e-6)
    assert epsilon_by_dp_accounting(wanted, 1e-4) == pytest.approx(0.149, abs=1e-3)
    assert account(wanted, "pld").epsilon == pytest.approx(0.072, abs=1e-3)
    assert account(wanted, "rdp").epsilon == pytest.approx(0.081, abs=1e-3)


def test_a_million_equal_steps_take_less_than_two_seconds():
    start = time.process_time()
    account(charge(3.7, 1.3e-4, 1_000_000, 1e-6))
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_sixty_four_noise_levels_take_a_few_seconds():
    levels = tuple((0.8 + 0.02 * level, 55) for level in range(64))
    start = time.process_time()
    answer = account(Charge(PAPER_RATE, levels, 1e-5))
    assert time.process_time() - start < 8
    between = [account(Charge(PAPER_RATE, ((noise, 64 * 55),), 1e-5)).epsilon for noise in (0.8, 2.06)]
    assert between[1] < answer.epsilon < between[0]


_SCAN = """
import time
from dpbnn.privacy.accountants import Charge, account
slowest = 0.0
for noise in {noises}:
    for rate in {rates}:
        for steps in {steps}:
            for delta in {deltas}:
                for records, adjacency in ((1, "add_or_remove"), (1, "replace_one"), (3, "replace_one")):
                    levels = tuple((noise * (1 + i / 64), steps) for i in range({levels}))
                    charge = Charge(rate, levels, delta, records, adjacency)
                    start = time.process_time()
                    for name in (None, "pld"):
                        epsilon = account(charge, name).epsilon
                        assert epsilon >= 0, charge
                    assert account(charge).epsilon < float("inf"), charge
                    slowest = max(slowest, time.process_time() - start)
from pathlib import Path
# What getrusage says would begin with the memory of the process that started this one.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(slowest, int(peak.split()[1]) / 2**20)
"""


def _scan(**grid):
    command = [sys.executable, "-W", "error", "-c", _SCAN.format(**grid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    slowest, gigabytes = map(float, done.stdout.split())
    return slowest, gigabytes


@pytest.mark.slow
def test_the_largest_grids_stay_within_a_gigabyte():
    slowest, gigabytes = _scan(noises=(0.5,), rates=(0.1,), steps=(1000,), deltas=(1e-5,), levels=1)
    assert gigabytes < 1
    assert slowest < 10


@pytest.mark.slow
def test_no_settings_hang_or_take_more_than_a_gigabyte():
    slowest, gigabytes = _scan(
        noises=(0.01, 0.1, 0.5, 1.0, 10.0, 100.0),
        rates=(1e-9, 1e-6, 1e-3, 0.1, 0.7, 1.0),
        steps=(1, 1000, 1_000_000),
        deltas=(1e-12, 1e-5, 0.1),
        levels=1,
    )
    assert gigabytes < 1
    assert slowest < 15


@pytest.mark.slow
def test_no_sixty_four_levels_hang_or_take_more_than_a_gigabyte():
    slowest, gigabytes = _scan(
        noises=(0.01, 0.5, 1.0, 10.0, 100.0),
        rates=(1e-9, 1e-3, 0.7),
        steps=(1, 15_000),
        deltas=(1e-9, 0.1),
        levels=64,
    )
    assert gigabytes < 1
    assert slowest < 30
