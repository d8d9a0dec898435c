"""Lower bounds on epsilon: below the truth as often as they say, near it, and able to refute a wrong claim."""

import math

import numpy as np
import pytest

from dpbnn.audit.bounds import (
    clopper_pearson,
    epsilon_by_counts,
    epsilon_of_guesses,
    epsilon_of_noise,
    noise_multiplier_bounds,
    spread_bounds,
)
from dpbnn.privacy.accountants import Charge, account


def scores(noise, number, seed):
    generator = np.random.default_rng(seed)
    return 1 + noise * generator.standard_normal(number), noise * generator.standard_normal(number)


@pytest.mark.guarantees("The true multiplier is outside with a probability of at most ``1 - confidence``.")
def test_the_noise_is_within_its_bounds_as_often_as_they_say_and_they_are_narrow():
    found = [noise_multiplier_bounds(*scores(2.0, 2000, seed), confidence=0.9) for seed in range(300)]
    missed = sum(not low <= 2.0 <= high for low, high in found)
    assert missed <= 60, "30 are allowed on average; more than 60 happen once in 10 million"
    low, high = noise_multiplier_bounds(*scores(1.0, 50_000, 0), confidence=0.95)
    assert low > 0.97
    assert high < 1.03
    assert noise_multiplier_bounds(*scores(0.5, 2000, 0), confidence=1 - 1e-7)[1] < 1.0, "halved noise is seen"
    assert noise_multiplier_bounds(*scores(100.0, 100, 0), confidence=0.95)[1] == math.inf, "nothing is seen"


@pytest.mark.guarantees(
    "The epsilon shown is above the true one with a probability of at most ``1 - confidence``, if noise is "
    "Gaussian and alike in all tensors and levels."
)
def test_a_standard_deviation_is_within_its_bounds_as_often_as_they_say():
    generator = np.random.default_rng(0)
    found = [spread_bounds(3.0 * generator.standard_normal((20, 50)), confidence=0.9) for _ in range(300)]
    missed = sum(not low <= 3.0 <= high for low, high in found)
    assert 6 <= missed <= 60, "30 on average; fewer than 6 or more than 60 once in 10 million"


@pytest.mark.guarantees(
    "The epsilon shown is above the true one with a probability of at most ``1 - confidence``, if noise is "
    "Gaussian and alike in all tensors and levels."
)
@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(1.0, 1.0, 1), pytest.param(1.3, 256 / 60_000, 3515, marks=pytest.mark.slow), (0.8, 0.05, 50)],
)
def test_epsilon_of_the_true_noise_is_just_below_the_accountants(noise, rate, steps):
    upper = account(Charge(rate, ((noise, steps),), 1e-5)).epsilon
    lower = epsilon_of_noise(((noise, steps),), rate, 1e-5)
    assert 0.95 * upper < lower <= upper
    assert epsilon_of_noise(((noise / 2, steps),), rate, 1e-5) > upper
    assert epsilon_of_noise(((math.inf, steps),), rate, 1e-5) == 0


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "records"), [(3.0, 1.0, 4, 3), (2.0, 0.05, 50, 3), (30.0, 0.3, 20, 40)]
)
def test_epsilon_of_a_person_with_several_records_is_just_below_the_accountants(noise, rate, steps, records):
    upper = account(Charge(rate, ((noise, steps),), 1e-5, records)).epsilon
    lower = epsilon_of_noise(((noise, steps),), rate, 1e-5, records)
    assert 0.95 * upper < lower <= upper
    assert epsilon_of_noise(((noise / 2, steps),), rate, 1e-5, records) > upper
    assert epsilon_of_noise(((noise, steps),), rate, 1e-5) < lower


def test_bounds_on_a_probability_are_those_of_the_beta_distribution():
    assert clopper_pearson(0, 10, 0.95) == (0.0, pytest.approx(1 - 0.05**0.1))
    assert clopper_pearson(10, 10, 0.95) == (pytest.approx(0.05**0.1), 1.0)


def test_counts_bound_epsilon_from_below():
    truth = account(Charge(1.0, ((1.0, 1),), 1e-5)).epsilon
    found = [epsilon_by_counts(*scores(1.0, 5000, seed), delta=1e-5, confidence=0.95) for seed in range(20)]
    assert max(found) < truth
    assert np.median(found) > 1.0
    assert epsilon_by_counts(*scores(1e6, 5000, 1), delta=1e-5, confidence=0.999) < 0.2


@pytest.mark.guarantees("Guesses show an epsilon above the true one with a probability of at most ``1 - confidence``.")
def test_guesses_of_one_run_bound_epsilon_from_below():
    generator = np.random.default_rng(0)
    for epsilon in (0.5, 1.0, 3.0):
        share = 1 / (1 + math.exp(-epsilon))  # randomized response, guessed as well as can be
        found = [epsilon_of_guesses(int(generator.binomial(1000, share)), 1000, 1000, 1e-9, 0.95) for _ in range(100)]
        assert sum(bound > epsilon for bound in found) <= 19, "5 are allowed on average; more than 19 once in a million"
        assert np.median(found) > 0.7 * epsilon
    assert epsilon_of_guesses(500, 1000, 1000, 1e-9, 0.95) == 0
    assert epsilon_of_guesses(1000, 1000, 1000, 0.1, 0.95) == 0, "a large delta excuses everything"
