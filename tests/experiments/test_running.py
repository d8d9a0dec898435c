"""Jobs are done once, and their outcomes survive whatever interrupts."""

import pytest

from dpbnn.experiments.running import JobStore, run_jobs, write
from tests.experiments.doubling import Doubling


def run(store, jobs, minutes=None):
    return {key: done.outcome for key, done in run_jobs(jobs, store, "cpu", minutes, show=False).items()}


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
