"""What items are made of: simulated data with its oracle, recipes, words."""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from dpbnn.experiments import FULL, QUICK
from dpbnn.experiments.recipes import BEST, falling
from dpbnn.experiments.settings import METHODS, NETWORKS
from dpbnn.experiments.simulated import NOISE_MEAN_SQUARE, simulate
from dpbnn.experiments.tuning import candidates
from dpbnn.experiments.words import figure_of, number, paragraph, private, spread, upward


def test_the_oracle_is_the_exact_gaussian_process():
    own = simulate(3)
    x, y, new = (values.double().numpy() for values in (own.x, own.y, own.x_test))
    noise = (0.3 * x[:, 0] + 0.6) ** 2
    process = GaussianProcessRegressor(RBF(1.0), alpha=noise, optimizer=None).fit(x, y[:, 0])
    np.testing.assert_allclose(own.oracle(own.x_test), process.predict(new), atol=1e-6)


def test_simulations_are_as_the_text_says():
    many = [simulate(seed) for seed in range(40)]
    x, y = (torch.cat([getattr(own, name) for own in many]) for name in ("x", "y"))
    assert len(many[0].x) == 250
    assert len(many[0].x_test) == 150
    assert -3 <= x.min() < -2.99
    assert 2.99 < x.max() <= 3
    assert float(y.var()) == pytest.approx(1 + NOISE_MEAN_SQUARE, rel=0.15)
    errors = [float((own.oracle(own.x_test) - own.y_test[:, 0]).square().mean()) for own in many]
    assert NOISE_MEAN_SQUARE < np.mean(errors) < NOISE_MEAN_SQUARE + 0.06
    assert torch.equal(simulate(3).y, simulate(3).y)
    assert not torch.equal(simulate(3).y, simulate(4).y)


@pytest.mark.parametrize("size", [FULL, QUICK], ids=lambda size: size.name)
@pytest.mark.parametrize("pair", BEST)
def test_recipes_keep_the_budget_and_samplers_their_temperature(pair, size):
    setting = BEST[pair].at("mnist", size)
    plan = setting.plan()
    assert plan.epsilon() <= 0.894
    assert setting.steps == pytest.approx(40 * size.epochs / 15 * 60_000 / 2048, rel=0.03)
    if pair[1] == "sgld":
        noise = setting.method.learning_rate, plan.noise_at(0) * setting.clip_norm / setting.batch_size
        assert noise[0] * setting.records**2 * noise[1] ** 2 / 2 == pytest.approx(0.5, rel=1e-6)
        assert noise[0] * setting.records**2 * noise[1] ** 2 / 2 <= 0.5, "never less noise than was charged for"
    else:
        assert sum(steps for _, steps in setting.method.learning_rate) == setting.steps


def test_the_best_recipes_are_among_those_that_were_tried():
    for network in NETWORKS:
        for method in METHODS:
            assert BEST[network, method] in candidates(network, method, FULL)


def test_a_falling_rate_ends_at_an_eighth():
    runs = falling(0.8, 1003)
    assert runs[0] == (0.8, 128)
    assert runs[-1] == (pytest.approx(0.1), 125)
    assert sum(steps for _, steps in runs) == 1003


def test_figures_become_words():
    assert spread([0.3, 0.1, 0.2]) == "0.200 (0.100 to 0.300)"
    assert spread([0.3, None, 0.1, 0.2]) == "0.200 (0.100 to 0.300; 1 of 4 diverged)"
    assert spread([0.3, None]) == "0.300, 1 of 2 diverged"
    assert spread([None, None]) == "2 of 2 diverged"
    assert spread([]) == number(None) == "-"
    assert number(3.7e61) == "4e+61"
    assert [upward(0.89370151), upward(0.8937), private(0.3125, 3), private(None)] == [0.8938, 0.8937, "0.313", "-"]
    assert number(math.pi, 2) == "3.14"
    assert (
        paragraph("""
        one
        two
    """)
        == "one two"
    )
    assert figure_of("accuracy")([{"figures": {"accuracy": 0.5}}, {"figures": None}]) == [0.5, None]
