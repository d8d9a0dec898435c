"""The calibration tables: errors that can be, of the runs of the accuracy table."""

import pytest

from tests.experiments.stored import of


@pytest.mark.slow
def test_calibration_errors_are_of_the_runs_of_the_accuracy_table(results):
    assert results["calibration"]["bins"] == 15
    for row in results["calibration"]["rows"]:
        for kind in ("private_", ""):
            ece, mce = row["ours"][f"{kind}ece"], row["ours"][f"{kind}mce"]
            assert all(0 <= one <= other <= 1 for one, other in zip(ece, mce, strict=True))
    told = of(results["calibration"]["rows"], network="mlp", method="bbp", prior="none")["paper"]
    assert told["private_ece"] > told["private_mce"], "the paper's, which cannot be"
    for panel in results["reliability"]["rows"]:
        row = of(results["calibration"]["rows"], network="mlp", method=panel["method"], prior=panel["prior"])
        assert panel["settings"] == row["settings"] or not panel["is_private"]
