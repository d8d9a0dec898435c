"""Jobs are done once, and what they found survives whatever interrupts."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from matplotlib.figure import Figure

from dpbnn.experiments import page, reproducing
from dpbnn.experiments.item import QUICK, Item
from dpbnn.experiments.running import JobStore, run_jobs, write


@dataclass(frozen=True)
class Doubling:
    """Finds twice its number."""

    number: int
    version: int = 1
    done: ClassVar[list[int]] = []
    batches: ClassVar[list[int]] = []
    fails_at: ClassVar[set[int]] = set()
    on_host: ClassVar[bool] = True

    @property
    def key(self):
        return f"twice {self.number}"

    @property
    def settings(self):
        return {"version": self.version}

    @property
    def together(self):
        return self.number % 2

    @classmethod
    def run_all(cls, jobs, device):
        cls.batches.append(len(jobs))
        for job in jobs:
            if job.number in cls.fails_at:
                raise KeyboardInterrupt
            cls.done.append(job.number)
            yield {"twice": 2 * job.number}


@pytest.fixture(autouse=True)
def _forget():
    Doubling.done, Doubling.batches, Doubling.fails_at = [], [], set()


def run(store, jobs, minutes=None):
    return {key: own.found for key, own in run_jobs(jobs, store, "cpu", minutes, show=False).items()}


@pytest.mark.guarantees("A job that is done is not done again, unless its settings have changed.")
def test_every_job_is_done_once_and_jobs_of_a_kind_together(tmp_path):
    store, jobs = JobStore(tmp_path), [Doubling(number) for number in (1, 2, 3, 1)]
    assert run(store, jobs) == {f"twice {number}": {"twice": 2 * number} for number in (1, 2, 3)}
    assert sorted(Doubling.done) == [1, 2, 3]
    assert sorted(Doubling.batches) == [1, 2]
    assert run(store, [*jobs, Doubling(5)])["twice 5"] == {"twice": 10}
    assert sorted(Doubling.done) == [1, 2, 3, 5]


@pytest.mark.guarantees("A job that is done is not done again, unless its settings have changed.")
def test_a_job_with_other_settings_is_another_job(tmp_path):
    run(JobStore(tmp_path), [Doubling(1)])
    run(JobStore(tmp_path), [Doubling(1, version=2)])
    assert Doubling.done == [1, 1]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    store, jobs = JobStore(tmp_path), [Doubling(number) for number in (1, 3, 5, 7)]
    Doubling.fails_at = {5}
    with pytest.raises(KeyboardInterrupt):
        run(store, jobs)
    Doubling.fails_at = set()
    assert len(run(store, jobs)) == 4
    assert Doubling.done == [1, 3, 5, 7]


def test_nothing_is_begun_after_the_time(tmp_path):
    assert run(JobStore(tmp_path), [Doubling(1), Doubling(2)], minutes=-1) == {}
    assert Doubling.done == []


@pytest.mark.guarantees("Whatever interrupts, every file holds all of what it says.")
def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "deep" / "file.json"
    write(file, b"before")
    with pytest.raises(TypeError):
        write(file, "no bytes")
    assert file.read_bytes() == b"before"
    assert [path.name for path in file.parent.iterdir()] == ["file.json"]


def item(name, numbers):
    return Item(
        name,
        name.title(),
        lambda size: [Doubling(number) for number in numbers],
        lambda size, found: {"rows": [found[f"twice {number}"]["twice"] for number in numbers]},
        lambda results: f"Twice: {results['rows']}.",
        lambda results: Figure(),
    )


@pytest.fixture
def items(monkeypatch):
    own = {"small": item("small", [1, 2]), "large": item("large", [2, 40])}
    for module in (page, reproducing):
        monkeypatch.setattr(module, "ITEMS", own)
    return own


def test_items_are_written_with_a_page_made_of_their_files(tmp_path, items):
    outcome = reproducing.reproduce(list(items), QUICK, tmp_path, show=False)
    assert outcome == reproducing.Outcome(("small", "large"), 0, 3)
    assert sorted(Doubling.done) == [1, 2, 40]
    text = (tmp_path / "reproduction.md").read_text()
    assert "## Small" in text
    assert "Twice: [4, 80]." in text
    assert "A quick version" in text
    results = json.loads((tmp_path / "reproduction" / "large.json").read_text())
    assert results["rows"] == [4, 80]
    assert {"name", "size", "device", "torch", "date", "seconds"} <= set(results)
    assert page.picture_mark(results) in (tmp_path / "reproduction" / "large.svg").read_text()
    assert "Not run yet" not in text
    (tmp_path / "reproduction" / "large.json").write_text(json.dumps(results | {"format": 0}))
    assert "Large" not in page.page(tmp_path), "another version has written it"
    assert "Not run yet: `large`." in page.page(tmp_path)


def test_an_item_whose_jobs_are_not_all_done_is_not_written(tmp_path, items):
    reproducing.reproduce(["small"], QUICK, tmp_path, show=False)
    outcome = reproducing.reproduce(list(items), QUICK, tmp_path, minutes=-1, show=False)
    assert outcome == reproducing.Outcome(("small",), 1, 3)
    assert not (tmp_path / "reproduction" / "large.json").exists()
