"""Jobs are done once, and their outcomes survive whatever interrupts."""

import pytest

from dpbnn.experiments.running import run_jobs, write
from tests.experiments.doubling import Doubling


def run(folder, jobs, minutes=None):
    done = run_jobs({job.key: job for job in jobs}, folder, "cpu", minutes, show=False)
    return {key: kept["found"] for key, kept in done.items()}


@pytest.mark.guarantees("A job that is done is not done again, unless its settings have changed.")
def test_every_job_is_done_once_and_jobs_of_a_kind_together(tmp_path):
    jobs = [Doubling(number) for number in (1, 2, 3, 1)]
    assert run(tmp_path, jobs) == {f"twice {number}": {"twice": 2 * number} for number in (1, 2, 3)}
    assert sorted(Doubling.done) == [1, 2, 3]
    assert sorted(Doubling.batches) == [1, 2]
    assert run(tmp_path, [*jobs, Doubling(5)])["twice 5"] == {"twice": 10}
    assert sorted(Doubling.done) == [1, 2, 3, 5]


@pytest.mark.guarantees("A job that is done is not done again, unless its settings have changed.")
def test_a_job_with_other_settings_is_another_job(tmp_path):
    run(tmp_path, [Doubling(1)])
    run(tmp_path, [Doubling(1, version=2)])
    assert Doubling.done == [1, 1]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    jobs = [Doubling(number) for number in (1, 3, 5, 7)]
    Doubling.fails_at = {5}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, jobs)
    Doubling.fails_at = set()
    assert len(run(tmp_path, jobs)) == 4
    assert Doubling.done == [1, 3, 5, 7]


def test_nothing_is_begun_after_the_time(tmp_path):
    assert run(tmp_path, [Doubling(1), Doubling(2)], minutes=-1) == {}
    assert Doubling.done == []


@pytest.mark.guarantees("Whatever interrupts, every file holds all of what it says.")
def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "deep" / "file.json"
    write(file, b"before")
    with pytest.raises(TypeError):
        write(file, "no bytes")
    assert file.read_bytes() == b"before"
    assert [path.name for path in file.parent.iterdir()] == ["file.json"]
