"""Coverage: which settings attacks had and which pairs they had not, counted, named and said in words."""

from dataclasses import replace
from itertools import combinations

import pytest

from dpbnn.audit.coverage import coverage_of
from tests.audit.test_mechanism import PLAN, attack


@pytest.mark.guarantees("Pairs of settings that did not meet are counted and named.")
def test_pairs_that_did_not_meet_are_counted_and_named():
    attacks = [attack(), attack(replace(PLAN, clipping="automatic", max_records_per_person=3))]
    found = coverage_of(attacks, leaves_out=["what is slow"])
    assert found.looked_at["clipping"] == ("automatic", "flat")
    assert found.looked_at["rows_per_person"] == (1, 3)
    assert found.looked_at["records"] == (21, 23)
    assert found.pairs == 60
    assert ("flat", "several rows") in found.pairs_not_met
    assert ("automatic", "several rows") not in found.pairs_not_met
    assert ("flat", "joint BBP") in found.pairs_not_met
    met = {
        frozenset(pair) for kinds in (("flat", "one row"), ("automatic", "several rows")) for pair in pairs_of(kinds)
    }
    assert len(found.pairs_not_met) == 60 - len(met)
    text = str(found)
    assert "batches of 21 and 23 records; networks of 18 weights." in text
    assert "Looked at: automatic and flat clipping; 1 level of noise and clip norm; 1 and 3 rows per person" in text
    assert "Not looked at: your records and your network; more than 23 records in a batch; more than 18 weights" in text
    assert "what is slow" in text
    assert f"{len(found.pairs_not_met)} of 60 pairs of these settings at the same time." in text


def pairs_of(kinds):
    """Of an attack on one level with ordinary gradients, a small batch and a small network."""
    return combinations([*kinds, "one level", "ordinary", "a small batch", "a small network"], 2)
