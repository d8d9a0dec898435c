"""Bounds that are bought: private, near enough, and refused where they would be chance."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from dpbnn.errors import DpbnnError, DpbnnWarning
from dpbnn.privacy.accountants import Charge, account
from dpbnn.privacy.queries import bounds
from dpbnn.privacy.queries.bounds import Bounds, bounds_purchase, pure_epsilon_within, quantile
from tests.spending import bought, permitted

pytest.importorskip("opendp")


def names(count):
    return [f"column {place}" for place in range(count)]


def largest_loss(first, second, share, epsilon, draws=40_000):
    """The largest log ratio of the probabilities of candidates, among those that are not rare."""
    candidates = [0.0, 1.0, 2.0, 3.0]
    measurement = bounds._measurement(share, epsilon, candidates)
    counts = [Counter(measurement(np.array(values)) for _ in range(draws)) for values in (first, second)]
    return max(abs(math.log(counts[0][c] / counts[1][c])) for c in candidates if min(n[c] for n in counts) > 400)


@pytest.mark.guarantees(
    "Adding or removing one value changes no probability by more than the factor e^epsilon of the permit."
)
@pytest.mark.slow
def test_adding_or_removing_one_value_changes_no_probability_by_more_than_the_factor():
    neighbours = [2.5], []
    assert largest_loss(*neighbours, share=0.25, epsilon=1.0) < 1.0 + 0.1
    assert largest_loss(*neighbours, share=0.25, epsilon=8.0) > 1.0 + 0.1, "a larger epsilon would be noticed"


def test_quartiles_are_found_and_reach_beyond_what_is_between_them():
    generator = np.random.default_rng(0)
    table = np.stack(
        [generator.normal(2000, 10, 20_000), generator.random(20_000) < 0.1, generator.lognormal(3, 2, 20_000)], axis=1
    )
    found = bought(bounds_purchase(names(3), 20_000, 0.5, 1e-5), table)
    assert 1900 < found.low[0] < 1985
    assert 2015 < found.high[0] < 2100
    assert (found.low[1], found.high[1]) == (-1, 1), "a rare value is not clipped away"
    assert 60 < found.high[2] < 300, "and a heavy tail is"


def test_with_few_rows_one_bound_is_bought_for_all_columns_and_with_fewer_none():
    with pytest.warns(DpbnnWarning, match="one is bought for all"):
        few = bounds_purchase(names(5), 200, 0.5, 1e-5)
    assert list(few.purchases) == ["largest magnitude of all columns"]
    found = bought(few, np.random.default_rng(0).uniform(17, 90, (200, 5)))
    assert len(set(found.high)) == 1
    assert 60 < found.high[0] < 400
    np.testing.assert_array_equal(found.low, -found.high)
    with pytest.raises(DpbnnError, match=r"bounds must be given for so few rows: with 9 .* Give public ones"):
        bounds_purchase(names(5), 9, 0.5, 1e-5)


def test_the_target_shares_its_bound_with_no_other_column():
    generator = np.random.default_rng(0)
    table = np.column_stack([generator.uniform(0, 1e6, (300, 5)), generator.uniform(0, 4, 300)])
    with pytest.warns(DpbnnWarning, match="one is bought for all"):
        few = bounds_purchase(names(6), 300, 0.5, 1e-5, has_target=True)
    found = bought(few, table)
    assert list(few.purchases) == ["largest magnitude of all columns", "largest magnitude of the target"]
    assert sum(few.purchases.values()) == pytest.approx(0.5, rel=0.01)
    assert found.high[0] > 1e5
    assert 2 < found.high[-1] < 10
    with pytest.warns(DpbnnWarning):
        alone = bounds_purchase(names(1), 60, 0.5, 1e-5, has_target=True)
    assert alone.purchases == {"largest magnitude of the target": pytest.approx(0.5, rel=1e-3)}
    assert bought(alone, table[:, -1:]).high.shape == (1,)


def test_what_is_bought_is_decided_by_public_numbers_alone():
    table = np.random.default_rng(0).normal(size=(5000, 4))
    order = bounds_purchase(names(4), 5000, 0.5, 1e-5)
    before = order.purchases
    assert [*before] == [f"{side} quartile of column {place}" for place in range(4) for side in ("lower", "upper")]
    bought(order, table)
    bought(order, 1e6 * table[:10])
    assert order.purchases == before


@pytest.mark.parametrize("count", [1, 2, 7, 40, 200])
def test_what_is_bought_costs_by_itself_what_it_should(count):
    each = pure_epsilon_within(0.5, 1e-5, count)
    plan = Charge(0.01, ((1e6, 1),), 1e-5, pure_epsilons=(each,) * count)
    assert account(plan, "pld").epsilon == pytest.approx(0.5, rel=2e-3)
    assert each >= 0.5 / count * (1 - 1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, -1e300])
def test_one_bad_value_moves_bounds_no_more_than_any_other(bad):
    table = np.random.default_rng(0).normal(size=(20_000, 1))
    table[0] = bad
    found = bought(bounds_purchase(names(1), 20_000, 0.5, 1e-5), table)
    assert -4 < found.low[0] < -1 < 1 < found.high[0] < 4


def test_missing_values_are_left_out():
    table = np.random.default_rng(0).normal(1000, 50, size=(20_000, 1))
    table[: len(table) // 2] = np.nan
    found = bought(bounds_purchase(names(1), 20_000, 0.5, 1e-5), table)
    assert 800 < found.low[0] < 950 < 1050 < found.high[0] < 1200


def test_scaling_clips_to_the_bounds_and_knows_no_nan():
    own = Bounds(np.array([0.0, -1.0]), np.array([10.0, 1.0]))
    scaled = own.scaled(np.array([[5.0, 0.5], [-3.0, np.nan], [1e300, np.inf]]))
    np.testing.assert_array_equal(scaled, [[0, 0.5], [-1, 0], [1, 1]])


@pytest.mark.parametrize("wrong", [([1.0], [1.0]), ([0.0], [np.inf]), ([np.nan], [1.0]), ([0.0, 1.0], [2.0])])
def test_bounds_are_checked(wrong):
    with pytest.raises(DpbnnError, match="bounds must be"):
        Bounds(*(np.array(side) for side in wrong))


def test_candidates_are_public_and_cover_small_and_large():
    seen = []
    ledger = SimpleNamespace(buy=lambda _, draw: draw(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "quantile", lambda values, share, permit, candidates: seen.append(candidates) or 0.0)
        bounds_purchase(names(1), 20_000, 0.5, 1e-5).bounds_of(np.zeros((1, 1)), ledger)
    candidates = seen[0]
    assert candidates == sorted(candidates) == seen[1]
    assert 0.0 in candidates
    assert candidates[-1] >= 1e9
    assert permitted(1.0, lambda permit: quantile(np.zeros(1000), 0.5, permit, candidates)) == 0.0
