"""Accountants: valid first, tight second, and never a hang."""

import math
import subprocess
import sys
import time
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters

from dpbnn.errors import DpbnnError
from dpbnn.privacy.accountants import ACCOUNTANTS, ADJACENCIES, Charge, account, bounds, pld
from dpbnn.privacy.accountants.event import composed_event

PAPER_RATE = 256 / 60_000
ALMOST_ONE = 1 - 1e-13  # takes the way of sampled batches and yet has the closed form of full ones

# noise, rate, steps, delta, epsilon by PLD, RDP and GDP
TABLE = [
    (1.3, PAPER_RATE, 3515, 1e-5, 0.8645, 0.9544, 0.8344),
    (1.272074, PAPER_RATE, 3515, 1e-5, 0.8937, 0.9888, 0.8613),
    (1.798985, PAPER_RATE, 3515, 1e-5, 0.5497, 0.6054, 0.5384),
    (10.0, 1.0, 200, 1 / 250, 4.1944, 4.8010, 4.2083),
    (0.5, 0.001, 1000, 1e-6, 4.2351, 5.3292, 0.9764),
    (1.0, 0.01, 1000, 1e-5, 1.8282, 2.1014, 1.6177),
    (2.0, 0.05, 500, 1e-5, 2.5320, 2.7686, 2.4259),
]


def charge(noise, rate, steps, delta, **rest):
    return Charge(rate, ((noise, steps),), delta, **rest)


def epsilon(accountant, *settings, **rest):
    return account(charge(*settings, **rest), accountant).epsilon


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


@pytest.mark.parametrize("row", TABLE)
def test_the_table_comes_out(row):
    for name, expected in zip(("pld", "rdp", "gdp"), row[4:], strict=True):
        assert epsilon(name, *row[:4]) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("factor", [1 / 2, 2 / 3, 0.99, 1.01, 3 / 2, 2])
def test_the_table_rejects_wrong_noise(factor):
    noise, rate, steps, delta, *expected = TABLE[1]
    for name, value in zip(("pld", "rdp", "gdp"), expected, strict=True):
        assert epsilon(name, noise * factor, rate, steps, delta) != pytest.approx(value, abs=2e-3)


@pytest.mark.guarantees("RDP is never below the exact Gaussian.")
@pytest.mark.guarantees("PLD is never below the exact Gaussian.")
@pytest.mark.guarantees("The tightest is never below the exact Gaussian.")
@pytest.mark.parametrize("delta", [1e-9, 0.01])
@pytest.mark.parametrize("noise", [0.5, 40.0])
@pytest.mark.parametrize("name", [*bounds(), None])
def test_pld_and_rdp_and_the_tightest_are_never_below_the_exact_gaussian(name, noise, delta):
    for rate in (1.0, ALMOST_ONE):
        exact = get_epsilon_gaussian(noise / math.sqrt(10), delta)
        bound = epsilon(name, noise, rate, 10, delta)
        assert bound >= exact * (1 - 1e-9)
        assert bound <= exact * (1.005 if name != "rdp" else 1.4) + 0.01


@pytest.mark.guarantees("PLD stays valid at small delta and many steps.")
@pytest.mark.parametrize("delta", [1e-9, 2e-10])
@pytest.mark.parametrize("steps", [10_000, 100_000, 1_000_000])
def test_pld_stays_valid_at_small_delta_and_many_steps(steps, delta):
    assert epsilon("pld", math.sqrt(steps), ALMOST_ONE, steps, delta) >= get_epsilon_gaussian(1.0, delta)


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


@pytest.mark.guarantees("RDP is never far below PLD.")
@pytest.mark.parametrize("row", TABLE)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_rdp_is_never_far_below_pld(row, adjacency):
    by_rdp, by_pld = (epsilon(name, *row[:4], adjacency=adjacency) for name in ("rdp", "pld"))
    assert by_rdp >= by_pld * (1 - 1e-3)


@pytest.mark.guarantees("RDP for replacing is never below the exact Gaussian.")
@pytest.mark.parametrize("noise", [1.0, 5.0, 50.0])
def test_rdp_for_replacing_is_never_below_the_exact_gaussian(noise):
    bound = epsilon("rdp", noise, ALMOST_ONE, 10, 1e-5, adjacency="replace_one")
    exact = get_epsilon_gaussian(noise / math.sqrt(10) / 2, 1e-5)
    assert exact <= bound <= 2 * exact


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


@pytest.mark.guarantees("The tightest is the least of all bounds.")
@pytest.mark.parametrize("row", TABLE)
def test_the_tightest_is_the_smaller_of_pld_and_rdp(row):
    tightest = account(charge(*row[:4]))
    assert tightest.epsilon == min(epsilon(name, *row[:4]) for name in bounds())
    assert tightest.accountant in bounds()


@pytest.mark.guarantees("GDP is never the tightest.")
def test_gdp_is_never_the_tightest():
    assert epsilon("gdp", *TABLE[4][:4]) < account(charge(*TABLE[4][:4])).epsilon
    assert "gdp" not in bounds()
    assert "approximation" in account(charge(*TABLE[0][:4]), "gdp").remark


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_every_accountant_grows_with_exposure_and_falls_with_noise_and_delta(name):
    base = {"noise": 1.2, "rate": 0.01, "steps": 500, "delta": 1e-5, "records_per_person": 1}
    middle = account(charge(**base), name).epsilon
    for more in ({"rate": 0.011}, {"steps": 550}, {"noise": 1.1}, {"delta": 1e-6}, {"records_per_person": 2}):
        assert account(charge(**base | more), name).epsilon > middle * 1.001


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_every_accountant_sees_only_the_total_of_each_level(name):
    once = Charge(0.01, ((1.0, 300), (2.0, 200)), 1e-5)
    swapped = Charge(0.01, ((2.0, 200), (1.0, 300)), 1e-5)
    assert account(once, name).epsilon == pytest.approx(account(swapped, name).epsilon, rel=1e-4)


def test_the_grid_is_refined_where_the_usual_one_is_too_coarse():
    wanted = charge(5.0, 1e-4, 1_000_000, 1e-6)
    assert epsilon_by_dp_accounting(wanted, 1e-4) == pytest.approx(0.149, abs=1e-3)
    assert account(wanted, "pld").epsilon == pytest.approx(0.072, abs=1e-3)
    assert account(wanted, "rdp").epsilon == pytest.approx(0.081, abs=1e-3)


def test_a_hopeless_run_is_reported_by_rdp_at_once():
    start = time.process_time()
    answer = account(charge(0.01, 1.0, 30_000, 1e-5))
    assert answer.epsilon > 1000
    assert "PLD was not tried" in answer.remark
    assert time.process_time() - start < 2


def test_rdp_stands_where_pld_has_no_answer():
    answer = account(charge(2.0, 0.001, 1_000_000, 1e-12))
    assert answer.accountant == "rdp"
    assert "no PLD figure" in answer.remark


def test_no_noise_at_all_to_speak_of_gives_infinity_and_no_exception():
    for name in ACCOUNTANTS:
        assert account(charge(1e-200, 0.1, 10, 1e-5), name).epsilon == math.inf


def test_gdp_refuses_what_it_was_not_derived_for():
    with pytest.raises(DpbnnError, match="'gdp' must not be used for adjacency 'replace_one'"):
        epsilon("gdp", 1.0, 0.1, 10, 1e-5, adjacency="replace_one")


def test_an_unknown_accountant_is_refused_with_the_list_of_known_ones():
    with pytest.raises(DpbnnError, match="accountant must be one of 'pld', 'rdp', 'gdp', got 'moments'"):
        account(charge(1.0, 0.1, 10, 1e-5), "moments")


def test_a_million_equal_steps_take_less_than_two_seconds():
    start = time.process_time()
    account(charge(3.7, 1.3e-4, 1_000_000, 1e-6))
    assert time.process_time() - start < 2


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


def test_an_answer_is_the_same_when_asked_again():
    wanted = charge(1.3, PAPER_RATE, 3515, 1e-5)
    assert account(wanted) is account(replace(wanted))


def exact_epsilon_of_pure_releases(own, count, delta):
    """By the binomial distribution of how often randomized response tells the truth."""
    truth = math.exp(own) / (1 + math.exp(own))
    losses = [(2 * right - count) * own for right in range(count + 1)]
    weights = [math.comb(count, right) * truth**right * (1 - truth) ** (count - right) for right in range(count + 1)]

    def delta_at(epsilon):
        return sum(w * -math.expm1(epsilon - loss) for loss, w in zip(losses, weights, strict=True) if loss > epsilon)

    low, high = 0.0, count * own
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("own", "count"), [(0.005, 20), (0.05, 40), (0.3, 3), (1.5, 1)])
@pytest.mark.parametrize("name", bounds())
def test_pure_releases_alone_cost_what_randomized_response_costs(name, own, count):
    exact = exact_epsilon_of_pure_releases(own, count, 1e-5)
    wanted = charge(1e6, 0.01, 1, 1e-5, pure_epsilons=(own,) * count)
    found = account(wanted, name).epsilon
    assert found >= exact * (1 - 1e-6)
    assert found <= exact * (1.005 if name == "pld" else 1.2) + (0 if name == "pld" else 0.01)
    assert account(replace(wanted, pure_epsilons=(own / 2,) * count), name).epsilon < exact


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("rate", [0.01, 1.0])
@pytest.mark.parametrize("name", bounds())
def test_a_pure_release_costs_at_most_its_epsilon_for_every_record_that_changes(name, rate, records, adjacency):
    settings = {"records_per_person": records, "adjacency": adjacency}
    alone = epsilon(name, 30.0, rate, 10, 1e-5, **settings)
    with_more = epsilon(name, 30.0, rate, 10, 1e-5, pure_epsilons=(0.01,), **settings)
    most = 0.01 * records * (2 if adjacency == "replace_one" else 1)
    assert alone < with_more <= alone + most * (1 if name == "pld" else 1.6) + 1e-6


def test_pure_releases_without_privacy_by_themselves_are_hopeless():
    assert epsilon(None, 5.0, 0.01, 10, 1e-5, pure_epsilons=(800.0,)) >= 799
