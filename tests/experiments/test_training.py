"""Training runs of image classifiers, and everything that is measured on them."""

import types
from dataclasses import replace

import pytest
import torch

from dpbnn.experiments import training
from dpbnn.experiments.settings import paper
from tests.experiments.stored import TINY


@pytest.mark.usefixtures("synthetic_images")
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


@pytest.mark.usefixtures("synthetic_images")
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
    assert job.group == training.Training(setting, 1, TINY).group


@pytest.mark.usefixtures("synthetic_images")
def test_an_iterate_is_kept_after_each_epoch():
    size = replace(TINY, epochs=3)
    setting = replace(paper("mnist", "mlp", "sgd", "none", True, size), noise_multiplier=2.0)
    (outcome,) = training.IterateAccuracy.run_all(training.IterateAccuracy.of(setting, size, seeds=1), "cpu")
    assert len(outcome["accuracy"]) == 3
    assert all(0 <= accuracy <= 1 for accuracy in outcome["accuracy"])
    noise = 2.0 * setting.clip_norm / setting.batch_size  # of the mean gradient
    assert outcome["temperature"] == pytest.approx(0.25 * 512 * noise**2 / 2, rel=1e-6)
    assert training.steps_of_iterates(setting) == (2, 4, 6)
