"""Sampling is Poisson, as accounted: inclusion, independence and batch sizes; wrong samplers are rejected."""

import math

import numpy as np
import pytest
from scipy import stats

from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler, _chosen

RECORDS, RATE, STEPS = 200, 0.07, 4000


def memberships(batches):
    joined = np.zeros((STEPS, RECORDS), dtype=bool)
    for step, batch in enumerate(batches):
        joined[step, batch] = True
    return joined


def poisson():
    sampler = PoissonSampler(RECORDS, RATE, Randomness.from_seed(0))
    return memberships(sampler.batch(step) for step in range(STEPS))


def fixed_size():
    generator = np.random.default_rng(0)
    return memberships(generator.choice(RECORDS, round(RECORDS * RATE), replace=False) for _ in range(STEPS))


def shuffled():
    generator = np.random.default_rng(0)
    size = round(RECORDS * RATE)
    order = np.concatenate([generator.permutation(RECORDS) for _ in range(-(-STEPS * size // RECORDS) + 1)])
    return memberships(order[step * size : (step + 1) * size] for step in range(STEPS))


def non_empty():
    generator = np.random.default_rng(0)
    joined = generator.random((STEPS, RECORDS)) < 0.005
    return np.where(joined.any(1, keepdims=True), joined, np.eye(RECORDS, dtype=bool)[0])


def looks_poisson(joined, rate=RATE):
    """p-values of: inclusion frequencies, batch sizes, dependence of pairs, dependence from step to step."""
    inclusion = stats.chisquare(joined.sum(0), np.full(RECORDS, joined.sum() / RECORDS)).pvalue
    total = stats.binomtest(int(joined.sum()), joined.size, rate).pvalue
    sizes = joined.sum(1)
    spread = (sizes.var() / (RECORDS * rate * (1 - rate)) - 1) / (2 / STEPS) ** 0.5
    pairs = (joined[:, ::2] & joined[:, 1::2]).sum()
    paired = stats.binomtest(int(pairs), STEPS * RECORDS // 2, rate**2).pvalue
    again = (joined[:-1] & joined[1:]).sum()
    repeated = stats.binomtest(int(again), (STEPS - 1) * RECORDS, rate**2).pvalue
    return min(inclusion, total, 2 * stats.norm.sf(abs(spread)), paired, repeated) > 1e-7


@pytest.mark.guarantees("Every record joins every batch independently with the sampling rate.")
def test_every_record_joins_every_batch_independently_with_the_sampling_rate():
    assert looks_poisson(poisson())


@pytest.mark.parametrize("rate", [0.3, 0.4, 0.9])
def test_that_holds_for_frequent_records(rate):
    sampler = PoissonSampler(RECORDS, rate, Randomness.from_seed(0))
    assert looks_poisson(memberships(sampler.batch(step) for step in range(STEPS)), rate)
    assert not looks_poisson(memberships(sampler.batch(step) for step in range(STEPS)), rate * 1.05)


class Exponentials:
    """A generator that gives these."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def standard_exponential(self, size):
        return np.resize(np.array(self.numbers), size)


def test_gaps_are_counted_from_one_record_to_the_next_and_none_joins_twice():
    unit = math.log(2)  # the mean gap at rate 1/2 is 1 / log 2 of them
    assert _chosen(6, 0.5, Exponentials(0.0)).tolist() == [0, 1, 2, 3, 4, 5]
    assert _chosen(6, 0.5, Exponentials(0.9 * unit)).tolist() == [0, 1, 2, 3, 4, 5]
    assert _chosen(6, 0.5, Exponentials(1.1 * unit)).tolist() == [1, 3, 5]
    assert _chosen(6, 0.5, Exponentials(5.5 * unit)).tolist() == [5]
    assert _chosen(6, 0.5, Exponentials(6.5 * unit)).tolist() == []
    assert _chosen(6, 1.0, Exponentials(30.0)).tolist() == [0, 1, 2, 3, 4, 5]
    assert _chosen(6, 1e-300, Exponentials(40.0)).tolist() == []
    assert _chosen(300, 1e-30, Exponentials(0.0)).tolist() == list(range(300)), "however often more are asked for"


@pytest.mark.parametrize("wrong", [fixed_size, shuffled, lambda: poisson()[:, ::-1] & poisson()])
def test_other_samplers_are_rejected(wrong):
    assert not looks_poisson(wrong())


def test_samplers_that_never_give_an_empty_batch_are_rejected():
    sampler = PoissonSampler(RECORDS, 0.005, Randomness.from_seed(0))
    assert looks_poisson(memberships(sampler.batch(step) for step in range(STEPS)), rate=0.005)
    assert not looks_poisson(non_empty(), rate=0.005)


def test_batches_are_distinct_sorted_records_and_can_be_empty_or_whole():
    sampler = PoissonSampler(10, 0.05, Randomness.from_seed(1))
    batches = [sampler.batch(step) for step in range(200)]
    assert any(len(batch) == 0 for batch in batches)
    assert all((np.diff(batch) > 0).all() and (batch >= 0).all() and (batch < 10).all() for batch in batches)
    assert (PoissonSampler(10, 1.0, Randomness.from_seed(1)).batch(0) == np.arange(10)).all()
    assert len(PoissonSampler(0, 0.5, Randomness.from_seed(1)).batch(0)) == 0


def test_tiny_rates_are_not_biased():
    """`rand < q` in float32 has a granularity of 2^-24, far too coarse for this rate."""
    records, rate, steps = 1_000_000, 3e-8, 20_000
    sampler = PoissonSampler(records, rate, Randomness.from_seed(2))
    total = sum(len(sampler.batch(step)) for step in range(steps))
    assert stats.poisson(records * rate * steps).cdf(total) > 1e-6
    assert stats.poisson(records * rate * steps).sf(total) > 1e-6


@pytest.mark.guarantees("The batch of a step depends on nothing but the key and the step.")
def test_the_batch_of_a_step_depends_on_nothing_but_the_key_and_the_step():
    sampler = PoissonSampler(RECORDS, RATE, Randomness.from_seed(3))
    forwards = [sampler.batch(step).tolist() for step in range(5)]
    backwards = [sampler.batch(step).tolist() for step in reversed(range(5))]
    assert forwards == backwards[::-1]
    rows, sizes = sampler.in_a_row(2, 4)
    assert [part.tolist() for part in np.split(rows, sizes[:1])] == forwards[2:4]
