"""Theorem 4: whose gradients fall with the number of steps."""

import math

import pytest
import torch

from dpbnn.experiments.convergence import GradientNorms
from dpbnn.experiments.settings import paper
from tests.experiments.stored import TINY, published


def slope_of(rows, activation, schedule):
    """Of the smallest gradient along the number of steps, both as logarithms, from the fewest to the most."""
    matching = [row for row in rows if row["activation"] == activation and row["schedule"].startswith(schedule)]
    first, last = matching[0], matching[-1]
    return math.log(last["smallest_mean"] / first["smallest_mean"]) / math.log(last["steps"] / first["steps"])


@pytest.mark.slow
def test_gradients_fall_for_the_optimizer_and_not_for_the_sampler(results):
    rows = results["convergence"]["rows"]
    assert slope_of(rows, "relu", "DP-SGLD") > -0.1 > slope_of(rows, "relu", "DP-SGD,")
    assert slope_of(rows, "tanh", "DP-SGD,") < -0.1
    for row in rows:
        mean_of_smallest = sum(row["ours"]) / len(row["ours"])  # of figures with six decimals
        assert row["smallest_mean"] >= mean_of_smallest - 2e-6, "the expectation comes before the smallest"


def test_over_ten_thousand_steps_the_samplers_gradients_fall_much_more_slowly_with_tanh_too():
    rows = published("convergence")["rows"]
    for activation in ("relu", "tanh"):
        assert slope_of(rows, activation, "DP-SGLD") > slope_of(rows, activation, "DP-SGD,") + 0.1


@pytest.mark.usefixtures("synthetic_images")
def test_the_first_norm_is_that_of_the_gradient_at_the_first_weights():
    job = GradientNorms(paper("mnist", "mlp", "sgd", "none", True, TINY), 3, TINY)
    (outcome,) = GradientNorms.run_all([job], "cpu")
    assert len(outcome["norms"]) == 1 + job.setting.steps
    torch.manual_seed(3)
    model, data = job.setting.model(), job.data("cpu")
    torch.nn.functional.cross_entropy(model(data.x), data.y).backward()
    whole = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert outcome["norms"][0] == pytest.approx(float(whole.norm()), abs=2e-6)
