"""What comes out of the quick versions of small items, and of all of them together: the science, not only the files."""

import pytest

from dpbnn.experiments import ITEMS
from dpbnn.experiments.reproducing import FOLDER
from tests.experiments.stored import middle


@pytest.mark.slow
def test_uncertainty_tells_garments_from_digits(results):
    for row in results["out-of-distribution"]["rows"]:
        for scores in row["ours"].values():
            assert all(0 <= value <= 1 for values in scores.values() for value in values)
            if row["method"] == "sgd":
                assert set(scores["mutual_information"]) == {0.5}, "a point estimate has none"
        if row["method"] != "sgd" and row["network"] == "mlp":
            assert middle(row["ours"]["best"]["mutual_information"]) > 0.55


@pytest.mark.slow
def test_the_page_has_a_section_for_every_item(results):
    for item in ITEMS.values():
        assert f"\n## {item.title}\n" in results["page"]
        assert f"({FOLDER}/{item.name}.json)" in results["page"]
    assert results["page"].count("A quick version") == len(ITEMS)
