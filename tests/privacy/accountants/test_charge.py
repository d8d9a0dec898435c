"""What an accountant is asked, and that it is asked about nothing else than it covers."""

import math
from dataclasses import replace

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

from dpbnn.errors import DpbnnError
from dpbnn.privacy.accountants import Accountant, Accounting, Charge, account
from tests.privacy.accountants.charges import charge, epsilon

PLAIN = charge(5.0, 0.1, 10, 1e-5)


def test_gdp_refuses_what_it_was_not_derived_for():
    with pytest.raises(DpbnnError, match="'gdp' must not be used for adjacency 'replace_one'"):
        epsilon("gdp", 1.0, 0.1, 10, 1e-5, adjacency="replace_one")


@pytest.mark.guarantees("An accountant is not asked about charges that it does not cover.")
@pytest.mark.parametrize(
    ("change", "uncovered"),
    [
        ({"records_per_person": 2}, "several records of a person"),
        ({"pure_epsilons": (0.1,)}, "releases without delta beside the steps"),
        ({"adjacency": "replace_one"}, "adjacency 'replace_one'"),
    ],
)
def test_a_bound_says_infinity_and_an_approximation_refuses_what_it_does_not_cover(change, uncovered):
    asked = []
    careless = Accountant("careless", "", lambda charge: asked.append(charge) or Accounting(0.1, "careless"), True)
    answer = careless.account(replace(PLAIN, **change))
    assert (answer.epsilon, asked) == (math.inf, [])
    assert uncovered in answer.remark
    with pytest.raises(DpbnnError, match=f"'careless' must not be used for {uncovered}"):
        replace(careless, is_bound=False).account(replace(PLAIN, **change))
    assert (careless.account(PLAIN).epsilon, asked) == (0.1, [PLAIN])


def test_a_record_that_is_blanked_out_costs_what_one_that_is_removed_does():
    assert replace(PLAIN, adjacency="zero_out") == PLAIN
    with pytest.raises(DpbnnError, match="adjacency must be one of"):
        replace(PLAIN, adjacency="nearby")


@pytest.mark.parametrize(("records", "adjacency", "moved"), [(1, "add_or_remove", 1), (3, "replace_one", 6)])
def test_all_steps_of_full_batches_are_one_gaussian_release(records, adjacency, moved):
    full = Charge(1.0, ((40.0, 10), (20.0, 5)), 1e-5, records, adjacency)
    assert (full.steps, full.records_changed) == (15, moved)
    assert full.full_batch_noise == pytest.approx(1 / math.sqrt(10 * (moved / 40) ** 2 + 5 * (moved / 20) ** 2))
    exact = get_epsilon_gaussian(full.full_batch_noise, 1e-5)
    assert exact * (1 - 1e-9) <= account(full).epsilon <= 1.005 * exact
