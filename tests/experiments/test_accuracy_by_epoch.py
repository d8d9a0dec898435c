"""Accuracy along training."""

import pytest

from dpbnn.experiments import QUICK


@pytest.mark.slow
def test_private_methods_learn_along_the_way(results):
    for row in results["accuracy-by-epoch"]["rows"]:
        assert row["epoch"] == sorted(row["epoch"])
        assert row["epoch"][-1] == pytest.approx(QUICK.epochs, rel=0.1)
        if row["method"] != "mc_dropout":
            assert all(run[-1] > run[0] + 0.2 for run in row["ours"])
