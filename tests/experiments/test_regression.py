"""Regression: the simulated data with its oracle, and what the methods reach beside it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from dpbnn.experiments import FULL, QUICK
from dpbnn.experiments.regression import NOISE_MEAN_SQUARE, SETTINGS, Regression, simulate
from tests.experiments.stored import TINY, middle, published


def test_the_oracle_is_the_exact_gaussian_process():
    data = simulate(3)
    x, y, new = (values.double().numpy() for values in (data.x, data.y, data.x_test))
    noise = (0.3 * x[:, 0] + 0.6) ** 2
    process = GaussianProcessRegressor(RBF(1.0), alpha=noise, optimizer=None).fit(x, y[:, 0])
    np.testing.assert_allclose(data.oracle(data.x_test), process.predict(new), atol=1e-6)


def test_simulations_are_as_the_text_says():
    many = [simulate(seed) for seed in range(40)]
    x, y = (torch.cat([getattr(data, name) for data in many]) for name in ("x", "y"))
    assert len(many[0].x) == 250
    assert len(many[0].x_test) == 150
    assert -3 <= x.min() < -2.99
    assert 2.99 < x.max() <= 3
    assert float(y.var()) == pytest.approx(1 + NOISE_MEAN_SQUARE, rel=0.15)
    errors = [float((data.oracle(data.x_test) - data.y_test[:, 0]).square().mean()) for data in many]
    assert NOISE_MEAN_SQUARE < np.mean(errors) < NOISE_MEAN_SQUARE + 0.06
    assert torch.equal(simulate(3).y, simulate(3).y)
    assert not torch.equal(simulate(3).y, simulate(4).y)


@pytest.mark.slow
def test_the_papers_noise_drowns_what_better_settings_bring_near_the_oracle(results):
    stored = results["regression"]
    oracle = middle(stored["oracle"])
    rows = {row["method"]: row for row in stored["rows"]}
    assert len(stored["oracle"]) == QUICK.regression_seeds
    assert rows["sgld"]["as_printed"]["epsilon"]["pld"] == pytest.approx(308.36, abs=0.01)
    assert rows["sgld"]["as_printed"]["settings"]["noise_multiplier"] == pytest.approx(0.6325, abs=1e-4)
    for row in rows.values():
        assert row["private"]["settings"]["noise_multiplier"] == pytest.approx(10)
        for way in ("private", "best"):
            assert row[way]["epsilon"]["pld"] == pytest.approx(4.1944, abs=2e-4)
        assert row["best"]["oracle"] == stored["oracle"]
        assert 0.8 * oracle < middle(row["best"]["ours"]) < 2 * oracle
    assert middle(rows["bbp"]["private"]["ours"]) > 3 * oracle, "noise of the paper's setting drowns everything"


def test_over_twenty_seeds_nobody_predicts_better_than_the_oracle():
    stored = published("regression")
    oracle = middle(stored["oracle"])
    assert len(stored["oracle"]) == FULL.regression_seeds
    for row in stored["rows"]:
        assert oracle < middle(row["best"]["ours"]) < middle(row["private"]["ours"])
        if row["method"] == "sgld":
            assert middle(row["best"]["ours"]) < 1.12 * oracle


def test_a_run_is_measured_beside_the_oracle_of_its_simulation():
    best = SETTINGS["bbp"]["best"]
    setting = replace(best, steps=3, is_private=False, method=replace(best.method, learning_rate=0.01))
    first, second = Regression.run_all(Regression.of(setting, TINY, seeds=2), "cpu")
    assert (first["epsilon"], second["bands"]) == (None, None)
    assert {name: len(line) for name, line in first["bands"].items()} == dict.fromkeys(first["bands"], 81)
    for seed, outcome in enumerate((first, second)):
        data = simulate(seed)
        assert outcome["oracle"] == pytest.approx(
            float((data.oracle(data.x_test) - data.y_test[:, 0]).square().mean()), abs=1e-5
        )
        assert outcome["squared_error"] > outcome["oracle"], "three steps teach little"
        assert 0 <= outcome["coverage"] <= 1
