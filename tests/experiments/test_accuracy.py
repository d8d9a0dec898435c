"""The accuracy table: privacy costs accuracy, and better settings win some back."""

import pytest

from dpbnn.experiments import QUICK
from dpbnn.experiments.settings import NETWORKS
from tests.experiments.stored import middle, of


@pytest.mark.slow
def test_privacy_costs_accuracy_and_better_settings_win_some_back(results):
    rows = results["accuracy"]["rows"]
    assert len(rows) == 12
    for method in ("sgld", "bbp"):
        row = of(rows, network="mlp", method=method, prior="Gaussian")
        assert middle(row["ours"]["private"]) < middle(row["ours"]["not_private"])
    for network in NETWORKS:
        row = of(rows, network=network, method="mc_dropout")
        assert middle(row["best"]["private"]) > middle(row["ours"]["private"]) + 0.2
    for row in rows:
        least = 0 if row["method"] == "mc_dropout" else 0.3
        assert min(row["ours"]["private"]) > least, "all but one method learn something"
    assert all(len(row["ours"]["private"]) == QUICK.seeds == len(row["seeds"]) for row in rows)
    assert {row["paper"]["private"] for row in rows if row["network"] == "cnn" and row["method"] == "bbp"} == {None}
