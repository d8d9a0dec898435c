"""Normals from uniforms: the right distribution, and tails that do not end within reach."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpbnn.privacy.normals import normals_from_uniforms


def normals(w, turns, uniforms=None):
    def none_wanted(count):
        raise AssertionError("nothing was to be drawn again")

    w, turns = torch.as_tensor(w, dtype=torch.float64).clone(), torch.as_tensor(turns, dtype=torch.float32).clone()
    return normals_from_uniforms(w, turns, uniforms or none_wanted, torch.empty(2 * len(w))).double().chunk(2)


def many(count=500_000):
    generator = np.random.Generator(np.random.SFC64(0))
    return normals(generator.random(count), generator.random(count, dtype=np.float32), lambda n: torch.ones(n).double())


def test_both_halves_are_standard_normal_and_independent():
    first, second = many()
    for values in (first, second, (first + second) / math.sqrt(2), (first - second) / math.sqrt(2)):
        assert stats.kstest(values.numpy(), "norm").pvalue > 1e-6
    assert stats.kstest((first**2 + second**2).numpy(), "chi2", args=(2,)).pvalue > 1e-6
    assert abs(float(torch.corrcoef(torch.stack([first.abs(), second.abs()]))[0, 1])) < 5 / 500_000**0.5


def test_a_wrong_scale_or_shape_would_be_noticed():
    first, _ = many()
    for wrong in (first * 1.02, first + 0.01, first.clamp(-2.5, 2.5), first.sign() * first.abs() ** 1.03):
        assert stats.kstest(wrong.numpy(), "norm").pvalue < 1e-6


@pytest.mark.parametrize("w", [1 - 2.0**-53, 1 - 1e-9, 0.9, 0.5, 1e-3, 2.0**-24])
def test_the_radius_belongs_to_its_uniform(w):
    first, second = normals([w], [0.1])
    assert math.hypot(float(first), float(second)) == pytest.approx(math.sqrt(-2 * math.log(w)), rel=1e-6)


@pytest.mark.parametrize(("again", "bits"), [(1.0, 24), (2.0**-10, 34), (2.0**-53, 77)])
def test_beyond_5_77_the_radius_is_drawn_again_and_reaches_beyond_10(again, bits):
    for w in (0.0, 2.0**-53, 2.0**-25):
        first, second = normals([w], [0.3], lambda count: torch.full((count,), again).double())
        assert math.hypot(float(first), float(second)) == pytest.approx(math.sqrt(2 * bits * math.log(2)), rel=1e-6)
    assert math.sqrt(2 * 77 * math.log(2)) > 10


def test_what_is_drawn_again_continues_the_distribution_without_a_seam():
    """Conditional on being drawn again, the squared radius exceeds its threshold by an exponential of mean 2."""
    generator = np.random.default_rng(0)
    w, turns = generator.random(100_000) * 2.0**-24, generator.random(100_000)
    first, second = normals(w, turns, lambda count: torch.from_numpy(1.0 - generator.random(count)))
    beyond = first**2 + second**2 - 2 * 24 * math.log(2)
    assert stats.kstest(beyond.numpy() / 2, "expon").pvalue > 1e-6


def test_angles_go_all_the_way_round():
    turns = torch.arange(0, 1, 2.0**-9)
    first, second = normals(torch.full_like(turns, 0.5), turns)
    difference = torch.atan2(second, first) - 2 * math.pi * turns.double()
    assert torch.allclose(torch.cos(difference), torch.ones_like(difference), atol=1e-6)
