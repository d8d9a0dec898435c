"""The family of Langevin samplers: temperature and epsilon of its members."""

import pytest

from dpbnn.experiments import QUICK


@pytest.mark.slow
def test_samplers_of_the_family_are_at_temperature_one_half(results):
    rows = results["family"]["rows"]
    for row in rows:
        assert row["epsilon"] == sorted(row["epsilon"])
        assert len(row["epsilon"]) == len(row["steps"]) == len(row["ours"][0]) == QUICK.epochs
        if row["family"] == "DP-SGLD":
            assert row["temperature"] == pytest.approx(0.5, rel=1e-6)
    assert len({row["temperature"] for row in rows if row["family"] == "DP-SGD"}) > 2
