"""An item's template names its jobs once, and becomes its results."""

import json

import pytest
from matplotlib.figure import Figure

from dpbnn.experiments import FULL, ITEMS, QUICK
from dpbnn.experiments.item import Item, Later, each, first, short_hash
from tests.experiments.doubling import Doubling


def test_a_template_is_filled_with_the_outcomes_of_its_jobs():
    one, two, three = map(Doubling, (1, 2, 3))
    template = {
        "rows": [{"all": each([one, two], "twice"), "first": first([three, one], "twice")}],
        "sum": Later([two, three], lambda outcomes: sum(outcome["twice"] for outcome in outcomes)),
        "without jobs": Later([], len),
        "pair": (1, 2),
    }
    item = Item("name", "Title", lambda size: template, str, lambda results: Figure())
    assert list(item.jobs(QUICK).values()) == [one, two, three], "each job once, and only what is looked at"
    outcomes = {job.key: {"twice": 2 * job.number} for job in (one, two, three)}
    assert item.results(QUICK, outcomes) == {
        "rows": [{"all": [2, 4], "first": 6}],
        "sum": 10,
        "without jobs": 0,
        "pair": (1, 2),
    }
    with pytest.raises(KeyError):
        item.results(QUICK, {})


@pytest.mark.parametrize("name", ["accountants", "comparison", "convergence", "family", "regression", "reliability"])
def test_the_settings_of_a_job_are_json_and_a_part_of_its_key(name):
    jobs = ITEMS[name].jobs(QUICK)
    assert jobs
    for job in jobs.values():
        assert json.loads(json.dumps(job.settings)) is not None
        assert short_hash(job.settings) in job.key, "other settings give another key"


def test_reliability_and_confidence_are_of_the_same_runs():
    reliability, confidence = (ITEMS[name].jobs(QUICK).keys() for name in ("reliability", "confidence"))
    assert confidence < reliability


def test_the_full_size_is_another_run():
    quick, full = (ITEMS["regression"].jobs(size).keys() for size in (QUICK, FULL))
    assert not quick & full
