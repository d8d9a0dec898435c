"""The methods compared: what they cost."""

import pytest

from dpbnn.experiments import QUICK
from dpbnn.experiments.comparison import Cost
from dpbnn.experiments.settings import paper
from tests.experiments.stored import TINY, of


@pytest.mark.slow
def test_samples_take_more_room_than_a_mean_field_and_that_more_than_a_point(results):
    rows = {row["method"]: row["private"] for row in results["comparison"]["rows"]}
    room = {method: row["release_bytes"] / (4 * row["weights"]) for method, row in rows.items()}
    samples = min(100, paper("mnist", "mlp", "sgld", "Gaussian", True, QUICK).steps // 2)
    assert room["sgld"] == pytest.approx(samples, rel=0.05)
    assert [room["bbp"], room["bbp, joint form"]] == pytest.approx([2, 2], rel=0.05)
    assert room["sgd"] == pytest.approx(1, rel=0.05)
    assert all(row["seconds_per_epoch"] > 0 and row["training_bytes"] is None for row in rows.values())
    row = of(results["accuracy"]["rows"], network="mlp", method="sgld", prior="Gaussian")
    assert row["ours"]["seconds_per_epoch"] == rows["sgld"]["seconds_per_epoch"], "one job for both"


@pytest.mark.usefixtures("synthetic_images")
def test_a_cost_is_of_the_whole_release():
    setting = paper("mnist", "mlp", "bbp", "Gaussian", True, TINY)
    (outcome,) = Cost.run_all([Cost(setting, 0, TINY)], "cpu")
    assert outcome["weights"] == 784 * 8 + 8 + 8 * 10 + 10
    assert outcome["release_bytes"] > 2 * 4 * outcome["weights"], "a mean and a spread for each weight"
    assert outcome["seconds_per_epoch"] > 0 < outcome["prediction_seconds"]
