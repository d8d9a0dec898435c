"""Normals from bits: the right distribution, tails that do not end within reach, no coarse steps near zero."""

import math

import numpy as np
import pytest
from scipy import stats

from dpbnn.privacy.noise.normals import FIRST_END, Normals

COUNT = 2_000_000


class Fixed:
    """In place of a generator: the numbers that ends are to be drawn from."""

    def __init__(self, uniform=0.5, exponential=1.0):
        self.uniform, self.exponential = uniform, exponential

    def random(self, count):
        return np.full(count, self.uniform)

    def standard_exponential(self, count):
        return np.full(count, self.exponential)


def words(for_radius, for_angle):
    """The bits that hold these: first all for radii, then all for angles."""
    return np.concatenate([np.asarray(for_radius, np.uint32), np.asarray(for_angle).astype(np.uint32)]).view(np.uint64)


def pairs(for_radius, for_angle, generator=None):
    bits = words(for_radius, for_angle)
    return Normals(len(bits)).from_bits(bits, generator or Fixed()).astype(np.float64).reshape(2, -1)


def radius(for_radius, **fixed):
    return float(np.hypot(*pairs([for_radius] * 2, [12345, 2**31 + 999], Fixed(**fixed)))[0])


@pytest.fixture(scope="module")
def many():
    generator = np.random.Generator(np.random.SFC64(0))
    bits = generator.bit_generator.random_raw(COUNT)
    return Normals(COUNT).from_bits(bits, generator).astype(np.float64).reshape(2, -1)


def is_normal(values):
    return stats.kstest(values, "norm").pvalue > 1e-6


def test_both_halves_are_standard_normal_and_independent(many):
    first, second = many
    for values in (first, second, (first + second) / math.sqrt(2), (first - second) / math.sqrt(2)):
        assert is_normal(values)
    assert stats.kstest(first**2 + second**2, "chi2", args=(2,)).pvalue > 1e-6
    for size in (np.abs, np.square):
        assert abs(np.corrcoef(size(first), size(second))[0, 1]) < 5 / COUNT**0.5


def test_a_wrong_scale_or_shape_would_be_noticed(many):
    first, _ = many
    for wrong in (first * 1.01, first + 0.01, first.clip(-2.7, 2.7), np.sign(first) * np.abs(first) ** 1.02):
        assert not is_normal(wrong)
    coarse = stats.norm.ppf((np.floor(stats.norm.cdf(first) * 2**8) + 0.5) / 2**8)
    assert not is_normal(coarse)


def test_the_first_eight_moments_are_those_of_a_normal(many):
    both = many.ravel()
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170), (8, 105, 2016000)):
        assert abs((both**power).mean() - expected) < 5 * (variance / len(both)) ** 0.5, power


def test_hardly_two_normals_are_the_same_as_float32_has_them(many):
    """Of 16-bit uniforms at most 65,536 values could come, of a lattice of 2^-24 near zero about 30,000 there."""
    both = many.astype(np.float32).ravel()
    assert len(np.unique(both)) > 0.9 * len(both)
    small = both[np.abs(both) < 1e-3]
    assert len(np.unique(small)) > 0.999 * len(small) > 3000
    assert np.mean(small * 2**24 == np.round(small * 2**24)) < 0.01


@pytest.mark.parametrize("for_radius", [0, 1, 2**20, 2**28 + 7, 2**31, FIRST_END - 1])
def test_the_radius_belongs_to_its_bits(for_radius):
    w = (for_radius + 2**20 + 0.5) / 2**32
    assert radius(for_radius) == pytest.approx(math.sqrt(-2 * math.log(w)), rel=4e-7)


def test_an_odd_integer_at_the_end_is_the_tail_which_reaches_beyond_10():
    for exponential in (0.0, 1.0, 20.0, 44.0):
        expected = math.sqrt(2 * (12 * math.log(2) + exponential))
        assert radius(FIRST_END + 1, exponential=exponential) == pytest.approx(expected, rel=4e-7)
    assert expected > 10


def test_an_even_integer_at_the_end_is_near_zero_in_steps_of_its_own():
    for uniform in (0.0, 0.5, 1 - 2.0**-20, 1 - 2.0**-53):
        expected = math.sqrt(-2 * math.log1p(-(2.0**-12) * (1 - uniform)))
        assert radius(2**32 - 2, uniform=uniform) == pytest.approx(expected, rel=4e-7)
        assert expected > 0


def test_the_ends_continue_the_distribution_without_a_seam():
    """In the tail the squared radius exceeds its threshold by an exponential of mean 2; near zero w is uniform."""
    generator = np.random.default_rng(0)
    ends = generator.integers(FIRST_END, 2**32, 200_000)
    first, second = pairs(ends, generator.integers(0, 2**32, 200_000), generator)
    half_squared = (first**2 + second**2) / 2
    in_tail = ends % 2 == 1
    assert stats.kstest(half_squared[in_tail] - 12 * math.log(2), "expon").pvalue > 1e-6
    assert stats.kstest(-np.expm1(-half_squared[~in_tail]) * 2**12, "uniform").pvalue > 1e-6


def test_neighbours_are_a_float32_step_apart_or_less_where_the_tail_begins():
    steps = np.arange(1000)
    found = np.hypot(*pairs(steps, np.zeros(1000)))
    assert np.abs(np.diff(found)).max() <= np.spacing(np.float32(4.1))


def test_angles_go_all_the_way_round():
    for_angle = np.arange(-(2**31), 2**31, 2**21)
    first, second = pairs(np.full(len(for_angle), 2**31), for_angle)
    difference = np.arctan2(second, first) - for_angle * math.pi / 2**31
    assert np.allclose(np.cos(difference), 1.0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 0.3, 1e30])
def test_the_scale_is_a_factor(scale):
    bits = np.random.Generator(np.random.SFC64(1)).bit_generator.random_raw(1000)
    plain, scaled = (Normals(1000).from_bits(bits, Fixed(), factor).astype(np.float64) for factor in (1.0, scale))
    assert np.allclose(scaled / scale, plain, rtol=4e-7, atol=0)
