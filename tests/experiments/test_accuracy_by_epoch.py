"""Accuracy along training."""

import pytest

from dpbnn.experiments import QUICK
from dpbnn.experiments.accuracy_by_epoch import AccuracyCurve
from dpbnn.experiments.settings import paper
from tests.experiments.stored import TINY


@pytest.mark.slow
def test_private_methods_learn_along_the_way(results):
    for row in results["accuracy-by-epoch"]["rows"]:
        assert row["epoch"] == sorted(row["epoch"])
        assert row["epoch"][-1] == pytest.approx(QUICK.epochs, rel=0.1)
        if row["method"] != "mc_dropout":
            assert all(run[-1] > run[0] + 0.2 for run in row["ours"])


@pytest.mark.usefixtures("synthetic_images")
def test_a_curve_is_measured_on_the_test_images_to_the_last_step():
    setting = paper("mnist", "mlp", "bbp", "Gaussian", True, TINY)
    (outcome,) = AccuracyCurve.run_all([AccuracyCurve(setting, 0, TINY)], "cpu")
    assert outcome["epoch"] == [0.5, 1.0]
    assert all((40 * accuracy) % 1 == pytest.approx(0, abs=1e-9) for accuracy in outcome["accuracy"])
