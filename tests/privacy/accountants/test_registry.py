"""The registry: which accountant is asked, which one stands, and what it says of the others."""

import time
from dataclasses import replace

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.privacy.accountants import account, bounds
from tests.privacy.accountants.charges import PAPER_RATE, TABLE, charge, epsilon


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


def test_an_unknown_accountant_is_refused_with_the_list_of_known_ones():
    with pytest.raises(DpbnnError, match="accountant must be one of 'pld', 'rdp', 'gdp', got 'moments'"):
        account(charge(1.0, 0.1, 10, 1e-5), "moments")


def test_an_answer_is_the_same_when_asked_again():
    wanted = charge(1.3, PAPER_RATE, 3515, 1e-5)
    assert account(wanted) is account(replace(wanted))


def test_pure_releases_without_privacy_by_themselves_are_hopeless():
    assert epsilon(None, 5.0, 0.01, 10, 1e-5, pure_epsilons=(800.0,)) >= 799
