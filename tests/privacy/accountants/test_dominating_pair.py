"""The pair of outputs that is easiest to tell apart, and its privacy loss: against integrals and other pairs."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpbnn.privacy.accountants.dominating_pair import DominatingPair, PureLoss, binomial_hits, pairs_for_step

EPSILONS = np.array([-3.0, -0.5, -0.01, 0.0, 0.01, 0.5, 1.0, 3.0])
STEPS = [(0.01, 0.7, 1), (0.3, 2.0, 1), (0.2, 1.5, 4)]


def density(mixture, x):
    return sum(weight * norm.pdf(x, mean) for weight, mean in mixture)


def integrated(upper, lower, epsilons):
    """The integral of max(0, upper - e^epsilon lower), by sums over a fine grid."""
    x, cell = np.linspace(-12, 15, 50_001, retstep=True)
    above, below = density(upper, x), density(lower, x)
    return np.array([np.maximum(above - math.exp(epsilon) * below, 0).sum() * cell for epsilon in epsilons])


def pairs(rate, noise, records):
    found = pairs_for_step(rate, noise, records, "add_or_remove")
    return found + (pairs_for_step(rate, noise, records, "replace_one") if records == 1 else [])


@pytest.mark.parametrize("step", STEPS)
def test_deltas_are_the_integrals_of_the_two_densities(step):
    for pair in pairs(*step):
        assert pair.delta(EPSILONS) == pytest.approx(integrated(pair.upper, pair.lower, EPSILONS), abs=2e-8)
        assert pair.delta(EPSILONS + 0.01) != pytest.approx(pair.delta(EPSILONS), abs=1e-5)


@pytest.mark.parametrize("step", STEPS)
def test_the_distribution_on_a_grid_is_never_below_the_exact_delta(step):
    for pair in pairs(*step):
        losses = pair.loss_distribution(1e-2)
        exact, on_grid = pair.delta(EPSILONS), np.array(losses.get_delta_for_epsilon(EPSILONS))
        assert (on_grid >= exact - 1e-12).all()
        assert on_grid == pytest.approx(exact, abs=1e-4)


def test_losses_grow_along_the_direction_in_which_a_person_moves_the_sum():
    for pair in pairs(0.2, 1.5, 4)[:1] + pairs(0.3, 2.0, 1)[2:]:
        low, high = pair.span()
        assert (np.diff(pair.loss(np.linspace(low, high, 1000))) >= 0).all()
        assert pair.loss_range() == (pair.loss(np.array(low)), pair.loss(np.array(high)))


def test_shorter_shifts_and_shifts_the_other_way_are_harder_to_tell_apart():
    """What the pair dominates: a person's records may move the sum by less than they might, and against each other."""
    removing, adding = pairs_for_step(0.2, 1.5, 4, "add_or_remove")
    generator = np.random.default_rng()
    worst = [pair.delta(EPSILONS) for pair in (removing, adding)]
    for _ in range(8):
        moved = tuple((weight, mean * generator.uniform(-1, 1)) for weight, mean in removing.upper)
        still = ((1.0, 0.0),)
        assert (integrated(moved, still, EPSILONS) <= worst[0] + 2e-8).all()
        assert (integrated(still, moved, EPSILONS) <= worst[1] + 2e-8).all()


def test_what_is_left_out_of_a_mixture_is_charged():
    (weight, mean), *rest = pairs_for_step(0.3, 2.0, 1, "add_or_remove")[0].upper
    whole = DominatingPair(((weight, mean), *rest), ((1.0, 0.0),))
    without = DominatingPair(tuple(rest), ((1.0, 0.0),), left_out=weight)
    assert (without.delta(EPSILONS) >= whole.delta(EPSILONS)).all()


@pytest.mark.parametrize(("records", "rate"), [(1, 1e-9), (3, 0.01), (1000, 0.5), (100_000, 1e-4)])
def test_a_batch_holds_a_binomial_number_of_a_persons_records(records, rate):
    hits, weights, left_out = binomial_hits(records, rate)
    assert weights.sum() + left_out == pytest.approx(1, abs=1e-9)
    assert 0 <= left_out < 1e-20
    assert weights @ hits == pytest.approx(records * rate)
    assert len(hits) < 1000


@pytest.mark.parametrize("epsilon", [0.001, 0.7, 5.0])
def test_a_release_without_delta_loses_what_randomized_response_does(epsilon):
    pure = PureLoss(epsilon)
    truth = 1 / (1 + math.exp(-epsilon))
    expected = [
        max(0, truth - math.exp(own) * (1 - truth)) + max(0, 1 - truth - math.exp(own) * truth) for own in EPSILONS
    ]
    assert pure.delta(EPSILONS) == pytest.approx(expected, abs=1e-12)
    assert pure.delta(np.array([epsilon])) == 0 < pure.delta(np.array([0.99 * epsilon]))


@pytest.mark.parametrize("steps", [1, 30, 1000])
def test_the_size_of_a_composition_is_foreseen(steps):
    for pair in [*pairs(0.1, 1.0, 1), PureLoss(0.02)]:
        losses = pair.loss_distribution(1e-3)
        points = len((losses.self_compose(steps) if steps > 1 else losses)._probs)
        assert 0.9 < pair.composed_points(1e-3, steps) / points < 4
