"""Reliability diagrams and confidence histograms count every answer once."""

import pytest

from dpbnn.experiments import QUICK


@pytest.mark.slow
def test_bins_hold_all_test_images_of_all_seeds(results):
    total = QUICK.seeds * QUICK.test_records
    for row in results["reliability"]["rows"]:
        assert sum(row["bins"]["count"]) == total
        assert all(
            (count == 0) == (share is None)
            for count, share in zip(row["bins"]["count"], row["bins"]["accuracy"], strict=True)
        )
    for row in results["confidence"]["rows"]:
        assert sum(row["counts"]["correct"]) + sum(row["counts"]["wrong"]) == total
    assert len(results["reliability"]["rows"]) == 11
    assert len(results["confidence"]["rows"]) == 6
