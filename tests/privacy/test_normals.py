"""Normals from bits: the right distribution, and tails that do not end within reach."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpbnn.privacy.normals import Normals

CPU = torch.device("cpu")


def normals(bits, uniforms=None):
    def none_wanted(count):
        raise AssertionError("nothing was to be drawn again")

    return Normals(len(bits), uniforms or none_wanted, CPU).from_bits(bits.clone()).double().chunk(2)


def many(count=500_000):
    generator = np.random.Generator(np.random.SFC64(0))
    bits = torch.from_numpy(generator.bit_generator.random_raw(count).view(np.int64))
    return normals(bits, lambda wanted: torch.from_numpy(1.0 - generator.random(wanted)))


def radius(w_bits, angle_bits=1000, again=None):
    uniforms = None if again is None else lambda count: torch.full((count,), again).double()
    first, second = normals(torch.tensor([angle_bits * 2**40 + w_bits]), uniforms)
    return math.hypot(float(first), float(second))


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


@pytest.mark.parametrize("w_bits", [2**40 - 1, 2**40 - 10**6, 2**39, 10**9, 2**19 + 1])
def test_the_radius_belongs_to_its_bits(w_bits):
    assert radius(w_bits) == pytest.approx(math.sqrt(-2 * math.log(w_bits / 2**40)), rel=1e-6)


@pytest.mark.parametrize(("again", "bits"), [(1.0, 21), (2.0**-10, 31), (2.0**-53, 74)])
def test_beyond_5_4_the_radius_is_drawn_again_and_reaches_beyond_10(again, bits):
    for w_bits in (0, 1, 2**18):
        assert radius(w_bits, again=again) == pytest.approx(math.sqrt(2 * bits * math.log(2)), rel=1e-6)
    assert math.sqrt(2 * 74 * math.log(2)) > 10


def test_what_is_drawn_again_continues_the_distribution_without_a_seam():
    """Conditional on being drawn again, the squared radius exceeds its threshold by an exponential of mean 2."""
    generator = np.random.default_rng(0)
    bits = torch.from_numpy(
        generator.integers(0, 2**19 - 9, 100_000) + 2**40 * generator.integers(-(2**23), 2**23, 100_000)
    )
    first, second = normals(bits, lambda count: torch.from_numpy(1.0 - generator.random(count)))
    beyond = first**2 + second**2 - 2 * 21 * math.log(2)
    assert stats.kstest(beyond.numpy() / 2, "expon").pvalue > 1e-6


def test_angles_go_all_the_way_round():
    angle_bits = torch.arange(-(2**23), 2**23, 2**13)
    first, second = normals(angle_bits * 2**40 + 2**39)
    difference = torch.atan2(second, first) - angle_bits.double() * math.pi / 2**23
    assert torch.allclose(torch.cos(difference), torch.ones_like(difference), atol=1e-6)
