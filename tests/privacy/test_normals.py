"""Normals from bits: the right distribution, and tails that do not end within reach."""

import math

import numpy as np
import torch
from scipy import stats

from dpbnn.privacy.normals import pairs_of_normals


def random_bits(count, seed=0):
    return torch.from_numpy(np.random.SFC64(seed).random_raw(count).view(np.int64))


def no_uniforms(count):
    raise AssertionError("nothing was to be drawn again")


def test_both_halves_are_standard_normal_and_independent():
    first, second = pairs_of_normals(random_bits(500_000), lambda count: torch.ones(count, dtype=torch.float64))
    assert first.dtype == second.dtype == torch.float32
    for values in (first, second, (first + second) / math.sqrt(2), (first - second) / math.sqrt(2)):
        assert stats.kstest(values.numpy(), "norm").pvalue > 1e-6
    assert stats.kstest((first**2 + second**2).double().numpy(), "chi2", args=(2,)).pvalue > 1e-6
    assert abs(float(torch.corrcoef(torch.stack([first.abs(), second.abs()]))[0, 1])) < 5 / 500_000**0.5


def test_a_wrong_scale_or_shape_would_be_noticed():
    first, _ = pairs_of_normals(random_bits(500_000), lambda count: torch.ones(count, dtype=torch.float64))
    for wrong in (first * 1.02, first + 0.01, first.clamp(-2.5, 2.5), first.sign() * first.abs() ** 1.03):
        assert stats.kstest(wrong.numpy(), "norm").pvalue < 1e-6


def test_the_smallest_radii_and_the_largest_come_from_the_right_bits():
    """Bits of all ones give w just below 1, hence almost zero; w of 2^-24 gives 5.77; below, w is drawn again."""
    largest_w = torch.tensor([2**40 - 1])
    first, second = pairs_of_normals(largest_w, no_uniforms)
    assert 0 < math.hypot(float(first), float(second)) < 2e-6
    smallest_kept = torch.tensor([2**16])
    first, second = pairs_of_normals(smallest_kept, no_uniforms)
    assert math.hypot(float(first), float(second)) == np.float32(math.sqrt(2 * 24 * math.log(2)))
    for w, expected in ((1.0, 24), (2.0**-10, 34), (2.0**-53, 77)):
        first, second = pairs_of_normals(torch.tensor([2**16 - 1]), lambda count, w=w: torch.full((count,), w).double())
        radius = math.hypot(float(first), float(second))
        assert abs(radius - math.sqrt(2 * expected * math.log(2))) < 1e-5
    assert radius > 10


def test_what_is_drawn_again_continues_the_distribution_without_a_seam():
    """Conditional on being drawn again, the squared radius exceeds its threshold by an exponential of mean 2."""
    generator = np.random.default_rng(0)
    bits = torch.randint(0, 2**16, (100_000,))
    first, second = pairs_of_normals(bits, lambda count: torch.from_numpy(1.0 - generator.random(count)))
    beyond = first.double() ** 2 + second.double() ** 2 - 2 * 24 * math.log(2)
    assert stats.kstest(beyond.numpy() / 2, "expon").pvalue > 1e-6


def test_angles_go_all_the_way_round():
    bits = torch.arange(-(2**23), 2**23, 2**15) * 2**40 + 2**39  # w = 1/2
    first, second = pairs_of_normals(bits, no_uniforms)
    angles = torch.atan2(second, first).double()
    expected = torch.arange(-(2**23), 2**23, 2**15).double() * math.pi / 2**23
    assert torch.allclose(torch.cos(angles - expected), torch.ones_like(expected), atol=1e-6)
