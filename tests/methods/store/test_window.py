"""Which iterates of a chain are kept: the right ones, and at least two."""

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.methods.store.window import Window
from tests.methods.store.chains import LIKE


@pytest.mark.parametrize(
    ("steps", "burn_in", "thin", "at_most", "expected"),
    [
        (10, None, None, 1000, [5, 6, 7, 8, 9]),
        (11, None, None, 1000, [5, 6, 7, 8, 9, 10]),
        (10, 0, None, 4, [0, 3, 6, 9]),
        (10, 2, 3, 1000, [3, 6, 9]),
        (3515, None, None, 1000, list(range(1758, 3515, 2))),
    ],
)
def test_the_window_drops_the_burn_in_and_thins_back_from_the_last(steps, burn_in, thin, at_most, expected):
    window = Window.over(steps, burn_in, thin, at_most)
    assert [step for step in range(steps) if window.holds(step)] == expected
    assert window.count == len(expected)


@pytest.mark.parametrize(
    ("keeping", "words"),
    [
        (dpbnn.KeepSamples(burn_in=10), "burn_in must be below"),
        (dpbnn.KeepSamples(burn_in=9), "At least 2 samples must be kept, got 1"),
        (dpbnn.KeepSamples(thin=100), "At least 2 samples must be kept"),
        (dpbnn.KeepSamples(max_bytes=100), "room for 1|At least 2"),
        (dpbnn.KeepSamples(thin=1, max_samples=3), "thin must leave at most 3 samples, got 5"),
        (dpbnn.KeepSummary(burn_in=9), "At least 2"),
    ],
)
def test_too_few_or_too_many_samples_are_refused_before_training(keeping, words):
    with pytest.raises(dpbnn.DpbnnError, match=words):
        keeping.open(LIKE, 10)
    plan = dpbnn.PrivacyPlan(20, 5, 10, clip_norm=1.0, noise_multiplier=1.0, delta=1e-2)
    if keeping.burn_in:
        with pytest.raises(dpbnn.DpbnnError, match=words):
            dpbnn.fit(
                nn.Linear(2, 2),
                torch.randn(20, 2),
                torch.arange(20) % 2,
                method=dpbnn.SGLD(1e-3, keep_as=keeping),
                plan=plan,
                likelihood=dpbnn.Categorical(),
            )
