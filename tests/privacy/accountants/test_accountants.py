"""What is asked of every accountant: figures that are known, bounds that are never below what has a closed form."""

import math
from dataclasses import replace

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

from dpbnn.privacy.accountants import ACCOUNTANTS, ADJACENCIES, Charge, account, bounds
from tests.privacy.accountants.charges import ALMOST_ONE, TABLE, charge, epsilon


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


def test_no_noise_at_all_to_speak_of_gives_infinity_and_no_exception():
    for name in ACCOUNTANTS:
        assert account(charge(1e-200, 0.1, 10, 1e-5), name).epsilon == math.inf


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
