"""Theorem 4: whose gradients fall with the number of steps."""

import math

import pytest

from tests.experiments.stored import published


def slope_of(rows, activation, schedule):
    """Of the smallest gradient along the number of steps, both as logarithms, from the fewest to the most."""
    own = [row for row in rows if row["activation"] == activation and row["schedule"].startswith(schedule)]
    first, last = own[0], own[-1]
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
