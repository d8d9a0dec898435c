"""Checks of batches: their p-values are those of Poisson samples, and tiny for others."""

import numpy as np
import pytest

from dpbnn.audit.sampling import audit_sampling, checks_of_counts

STEPS, RECORDS, REPETITIONS = 100, 200, 200


def p_values(batches, rate):
    return {check.name: check.p_value for check in checks_of_counts(batches, rate)}


@pytest.mark.guarantees("Code that is right fails a check at most once in ``1 / ALARM``.")
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_p_values_of_right_batches_are_small_no_more_often_than_they_say(rate):
    generator = np.random.default_rng(0)
    found = [p_values(generator.random((STEPS, RECORDS)) < rate, rate) for _ in range(REPETITIONS)]
    for name in found[0]:
        values = np.array([each[name] for each in found])
        assert (values < 0.1).sum() <= 44, f"{name}: 20 are allowed on average; more than 44 once in 5 million"
        assert (values < 0.01).sum() <= 13, f"{name}: 2 are allowed on average; more than 13 once in 10 million"


def shuffled(generator, rate):
    """Batches of one size, from a new order of all records in each pass over them."""
    each = round(rate * RECORDS)
    orders = np.concatenate([generator.permutation(RECORDS) for _ in range(STEPS)])
    return np.stack([np.isin(np.arange(RECORDS), orders[step * each :][:each]) for step in range(STEPS)])


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (lambda g, r: g.random((STEPS, RECORDS)) < 1.2 * r, "a record is in a batch with the plan's probability"),
        (shuffled, "batches vary in size as sums of independent records do"),
        (lambda g, r: np.repeat(g.random((STEPS // 2, RECORDS)) < r, 2, axis=0), "one step's batch says nothing"),
        (lambda g, r: np.tile(np.arange(RECORDS) < r * RECORDS, (STEPS, 1)), "records are in as many batches"),
    ],
)
def test_other_batches_fail_the_check_that_is_about_them(sampler, name):
    found = p_values(sampler(np.random.default_rng(0), 0.2), 0.2)
    assert next(value for key, value in found.items() if key.startswith(name)) < 1e-8


def test_batches_of_a_run_are_poisson_samples_at_the_plans_rate():
    found = audit_sampling(0.25, batches=300)
    assert found.holds, found.checks
    assert found.sampling_rate == 0.25
    assert 0.23 < found.mean_rate < 0.27
