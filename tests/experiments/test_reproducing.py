"""From names to files: JSON, pictures, and a page that is made of them."""

import json

import pytest
from matplotlib.figure import Figure

from dpbnn.experiments import reproducing
from dpbnn.experiments.item import QUICK, Item, each
from tests.experiments.doubling import Doubling


def item(name, numbers):
    return Item(
        name,
        name.title(),
        lambda size: {"rows": each([Doubling(number) for number in numbers], "twice")},
        lambda results: f"Twice: {results['rows']}.",
        lambda results: Figure(),
    )


@pytest.fixture
def items(monkeypatch):
    two = {"small": item("small", [1, 2]), "large": item("large", [2, 40])}
    monkeypatch.setattr(reproducing, "ITEMS", two)
    return two


def test_items_are_written_with_a_page_made_of_their_files(tmp_path, items):
    outcome = reproducing.reproduce(list(items), QUICK, tmp_path, show=False)
    assert outcome == reproducing.Reproduced(("small", "large"), 0, 3)
    assert sorted(Doubling.done) == [1, 2, 40]
    text = (tmp_path / "reproduction.md").read_text()
    assert "## Small" in text
    assert "Twice: [4, 80]." in text
    assert "A quick version" in text
    results = json.loads((tmp_path / "reproduction" / "large.json").read_text())
    assert results["rows"] == [4, 80]
    assert {"name", "size", "device", "torch", "date", "seconds"} <= set(results)
    assert reproducing.picture_mark(results) in (tmp_path / "reproduction" / "large.svg").read_text()
    assert "Not run yet" not in text
    (tmp_path / "reproduction" / "large.json").write_text(json.dumps(results | {"format": 0}))
    assert "Large" not in reproducing.page(tmp_path), "another version has written it"
    assert "Not run yet: `large`." in reproducing.page(tmp_path)


def test_an_item_whose_jobs_are_not_all_done_is_not_written(tmp_path, items):
    reproducing.reproduce(["small"], QUICK, tmp_path, show=False)
    outcome = reproducing.reproduce(list(items), QUICK, tmp_path, minutes=-1, show=False)
    assert outcome == reproducing.Reproduced(("small",), 1, 3)
    assert not (tmp_path / "reproduction" / "large.json").exists()
