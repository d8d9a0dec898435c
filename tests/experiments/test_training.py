"""Training runs of image classifiers, and everything that is measured on them."""

import types
from dataclasses import replace

import pytest
import torch

from dpbnn.data import Images
from dpbnn.experiments import training
from dpbnn.experiments.item import QUICK
from dpbnn.experiments.settings import paper

TINY = replace(QUICK, name="tiny", records=512, test_records=40, epochs=1, hidden=(8,), draws=3)


@pytest.fixture
def _synthetic_images(monkeypatch):
    def load(name):
        y = torch.arange(600) % 10
        x = torch.rand(600, 1, 28, 28) / 2
        x[torch.arange(600), 0, 2 * y] += 1.0  # a bright line, whose place tells the class
        return Images(name, x, y, x[:50].clone(), y[:50])

    for cached in (training.images, training._foreign_images):
        cached.cache_clear()
    monkeypatch.setattr(training, "load_images", load)
    yield
    for cached in (training.images, training._foreign_images):
        cached.cache_clear()


@pytest.mark.usefixtures("_synthetic_images")
def test_all_figures_are_of_the_same_predictions():
    jobs = training.Training.of(paper("mnist", "mlp", "sgd", "Gaussian", False, TINY), TINY)
    assert [job.seed for job in jobs] == [0, 1]
    for outcome in training.Training.run_all(jobs, "cpu"):
        bins, answers = outcome["reliability"], outcome["confidence"]
        assert sum(bins["count"]) == TINY.test_records == sum(answers["correct"]) + sum(answers["wrong"])
        assert outcome["figures"]["accuracy"] == pytest.approx(sum(answers["correct"]) / TINY.test_records)
        right = sum(count * (share or 0) for count, share in zip(bins["count"], bins["accuracy"], strict=True))
        assert right == pytest.approx(sum(answers["correct"]), abs=1e-3)
        assert outcome["epsilon"] is None
        assert outcome["foreign"]["mutual_information"] == 0.5, "a point estimate has none"


@pytest.mark.usefixtures("_synthetic_images")
def test_a_run_that_has_diverged_has_no_figures():
    (job,) = training.Training.of(paper("mnist", "mlp", "sgd", "Gaussian", True, TINY), TINY, seeds=1)
    prediction = types.SimpleNamespace(probabilities=torch.full((40, 10), float("nan")))
    release = types.SimpleNamespace(
        predict=lambda *_, **__: prediction,
        guarantee=types.SimpleNamespace(epsilon=0.5),
        settings={"steps_taken": 2},
    )
    outcome = job.measure(release, job.data("cpu"))
    assert outcome["epsilon"] == 0.5
    assert [outcome[kind] for kind in ("figures", "reliability", "confidence", "foreign")] == [None] * 4


def test_figures_of_a_setting_are_those_of_its_runs():
    later = training.figures("accuracy", paper("mnist", "mlp", "sgd", "none", True, TINY), TINY)
    assert [job.seed for job in later.jobs] == [0, 1]
    assert later.compute([{"figures": {"accuracy": 0.5}}, {"figures": None}]) == [0.5, None]


def test_what_is_measured_is_a_part_of_the_key():
    setting = paper("mnist", "cnn", "sgld", "Gaussian", True, TINY)
    job = training.Training(setting, 0, TINY)
    assert job.key.startswith("mnist, CNN, DP-SGLD, ")
    assert job.key != training.Training(setting, 0, replace(TINY, draws=4)).key
    assert job.key != training.Training(setting, 1, TINY).key
    assert job.together == training.Training(setting, 1, TINY).together
