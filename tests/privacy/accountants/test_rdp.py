"""Renyi divergences: against integrals, against dp-accounting and PLD, and against what has a closed form."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.rdp import RdpAccountant
from scipy.special import logsumexp
from scipy.stats import binom, norm

from dpbnn.privacy.accountants import ADJACENCIES, Charge, rdp
from dpbnn.privacy.accountants.event import composed_event
from tests.privacy.accountants.charges import ALMOST_ONE, PAPER_RATE, TABLE, charge, epsilon

ORDERS = (1.5, 2.0, 4.0, 8.0)
X, CELL = np.linspace(-60, 60, 20_001, retstep=True)


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


def log_density(noise, rate, records, sign=1):
    """Of one step's output, seen along the direction in which a person moves it."""
    hits = np.arange(records + 1)
    return logsumexp(binom.logpmf(hits, records, rate)[:, None] + norm.logpdf(X, sign * hits[:, None], noise), axis=0)


def renyi(upper, lower, order):
    """By its integral."""
    return float(logsumexp(order * upper + (1 - order) * lower) + math.log(CELL)) / (order - 1)


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_divergences_of_a_step_are_never_below_the_exact_ones_to_either_side(rate, records):
    bounds = rdp.divergences(charge(2.0, rate, 1, 1e-5, records_per_person=records), ORDERS)
    moved, still = log_density(2.0, rate, records), log_density(2.0, rate, 0)
    for order, bound in zip(ORDERS, bounds, strict=True):
        exact = renyi(moved, still, order)
        assert max(exact, renyi(still, moved, order)) <= bound * (1 + 1e-9)
        assert records > 1 or order % 1 or bound == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_divergences_for_replacing_are_never_below_the_exact_ones(rate):
    orders = RdpAccountant().orders
    listed = rdp.divergences(charge(2.0, rate, 1, 1e-5), tuple(orders))
    bounds = dict(zip(orders, rdp._of_two_changes(orders, listed), strict=True))
    one, other = log_density(2.0, rate, 1), log_density(2.0, rate, 1, sign=-1)
    for order in (1.5, 2, 4, 8):
        assert renyi(one, other, order) <= bounds[order]


def test_divergences_of_a_run_add_up_as_dp_accounting_has_it():
    wanted = Charge(0.01, ((1.0, 100), (2.0, 300), (0.9, 7)), 1e-5)
    peer = RdpAccountant(ORDERS)
    peer.compose(composed_event(wanted))
    assert rdp.divergences(wanted, ORDERS) == pytest.approx(peer.rdp, rel=1e-6)
    assert (rdp.divergences(wanted, ORDERS) > peer.rdp).all(), "with room for rounding"
    shorter = rdp.divergences(replace(wanted, noise_levels=wanted.noise_levels[:2]), ORDERS)
    assert (shorter < 0.99 * peer.rdp).all()


@pytest.mark.parametrize("own", [0.01, 1.0, 20.0])
def test_a_release_without_delta_has_the_divergences_of_randomized_response(own):
    truth = np.array([1 / (1 + math.exp(-own)), 1 / (1 + math.exp(own))])
    exact = [math.log((truth**order * truth[::-1] ** (1 - order)).sum()) / (order - 1) for order in ORDERS]
    assert rdp.pure_divergences(own, ORDERS) == pytest.approx(exact)
    with_it, without = (
        rdp.divergences(charge(4.0, 0.1, 5, 1e-5, pure_epsilons=pure, records_per_person=2), ORDERS[1:])
        for pure in ((own / 2,), ())
    )
    assert with_it - without == pytest.approx(exact[1:])


def test_with_many_noise_levels_only_whole_orders_are_tried_and_the_bound_is_little_larger():
    levels = tuple((1.2 + 1e-9 * level, 10) for level in range(20))
    merged = charge(1.2, PAPER_RATE, 200, 1e-5)
    many = rdp.account(replace(merged, noise_levels=levels)).epsilon
    assert rdp.account(merged).epsilon <= many * (1 + 1e-6)
    assert many < 1.2 * rdp.account(merged).epsilon


def test_orders_whose_series_do_not_converge_are_left_out_without_a_word(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert 0 < epsilon("rdp", 0.3, 0.6, 3, 1e-5) < math.inf
    assert not caplog.records
