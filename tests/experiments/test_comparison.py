"""The methods compared: what they cost."""

import pytest

from dpbnn.experiments import QUICK
from dpbnn.experiments.settings import paper
from tests.experiments.stored import of


@pytest.mark.slow
def test_samples_take_more_room_than_a_mean_field_and_that_more_than_a_point(results):
    rows = {row["method"]: row["private"] for row in results["comparison"]["rows"]}
    room = {method: row["release_bytes"] / (4 * row["weights"]) for method, row in rows.items()}
    samples = min(100, paper("mnist", "mlp", "sgld", "Gaussian", True, QUICK).steps // 2)
    assert room["sgld"] == pytest.approx(samples, rel=0.05)
    assert [room["bbp"], room["bbp, joint form"]] == pytest.approx([2, 2], rel=0.05)
    assert room["sgd"] == pytest.approx(1, rel=0.05)
    assert all(row["seconds_per_epoch"] > 0 and row["training_bytes"] is None for row in rows.values())
    own = of(results["accuracy"]["rows"], network="mlp", method="sgld", prior="Gaussian")
    assert own["ours"]["seconds_per_epoch"] == rows["sgld"]["seconds_per_epoch"], "one job for both"
