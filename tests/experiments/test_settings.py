"""The paper's settings and the best ones keep its budget, for data of any size."""

import pytest

from dpbnn.experiments import FULL, QUICK
from dpbnn.experiments.settings import BEST, METHODS, NETWORKS, falling, three_ways


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_settings_keep_the_papers_budget(network, method):
    ways = three_ways("mnist", network, method, "Gaussian", FULL)
    assert ways["private"].plan().epsilon() <= 0.894
    assert ways["best"].plan().epsilon() <= 0.894
    assert ways["not_private"].plan().epsilon() == float("inf")


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


def test_a_falling_rate_ends_at_an_eighth():
    runs = falling(0.8, 1003)
    assert runs[0] == (0.8, 128)
    assert runs[-1] == (pytest.approx(0.1), 125)
    assert sum(steps for _, steps in runs) == 1003
