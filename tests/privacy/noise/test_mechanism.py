"""The one boundary: the noise that is added is the noise that is accounted for."""

import math

import pytest
import torch
from scipy import stats

from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.source import StandardNoise
from dpbnn.types import ClippedSum

SHAPES = {"weight": (300, 500), "bias": (500,), "scale": ()}


def clipped(sensitivity=2.0, dtype=torch.float32):
    return ClippedSum({name: torch.full(shape, 3.0, dtype=dtype) for name, shape in SHAPES.items()}, sensitivity)


def has_standard_deviation(values, deviation):
    """A two-sided chi-square test of the variance at level 1e-6."""
    statistic = float(values.double().square().sum()) / deviation**2
    distribution = stats.chi2(values.numel())
    return min(distribution.cdf(statistic), distribution.sf(statistic)) > 5e-7


@pytest.mark.guarantees(
    "The noise's standard deviation is the noise multiplier times the sensitivity, in every parameter."
)
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_the_noise_has_the_noise_multiplier_times_the_sensitivity_in_every_parameter(name):
    noise = add_noise(clipped(), 1.5, StandardNoise(Randomness.from_seed(0)), 0).gradients[name] - 3.0
    assert has_standard_deviation(noise, 3.0)
    for wrong in (2 / 3, 3 / 2, 0.5, 2.0, math.sqrt(2), 1 / 1.5, 1 / 2.0):
        assert not has_standard_deviation(noise, 3.0 * wrong)
    assert stats.kstest(noise.flatten()[:5000].numpy() / 3.0, "norm").pvalue > 1e-6


@pytest.mark.guarantees("The noise is independent between numbers, parameters and steps.")
def test_the_noise_is_independent_between_numbers_parameters_and_steps():
    randomness = Randomness.from_seed(1)

    def noise(step):
        zeros = ClippedSum({name: torch.zeros(40_000) for name in "abc"}, 1.0)
        return list(add_noise(zeros, 1.0, StandardNoise(randomness), step).gradients.values())

    rows = torch.stack([*noise(step=0), *noise(step=1), noise(step=0)[0].roll(1)])
    correlations = torch.corrcoef(rows) - torch.eye(len(rows))
    assert float(correlations.abs().max()) < 6 / 40_000**0.5


@pytest.mark.guarantees("The private sum is gone afterwards.")
def test_the_private_sum_is_gone_afterwards():
    private = clipped()
    add_noise(private, 1.0, StandardNoise(Randomness.from_seed(0)), 0)
    assert private.gradients == {}


@pytest.mark.guarantees("Noise is drawn and added in float32 or wider.")
def test_noise_is_drawn_and_added_in_float32_or_wider():
    assert add_noise(clipped(), 1.0, StandardNoise(Randomness.from_seed(0)), 0).gradients["bias"].dtype == torch.float32
    double = add_noise(clipped(dtype=torch.float64), 1.0, StandardNoise(Randomness.from_seed(0)), 0).gradients["bias"]
    assert double.dtype == torch.float64
    assert (double.float().double() != double).any()  # the noise itself has more than float32's digits
    with pytest.raises(TypeError, match=r"float32 or wider, got torch\.bfloat16"):
        add_noise(clipped(dtype=torch.bfloat16), 1.0, StandardNoise(Randomness.from_seed(0)), 0)


def test_without_noise_the_sum_passes_as_it_is():
    assert torch.equal(
        add_noise(clipped(math.inf), 0.0, StandardNoise(Randomness.from_seed(0)), 0).gradients["bias"],
        torch.full((500,), 3.0),
    )


@pytest.mark.parametrize("multiplier", [-1.0, math.nan, math.inf])
def test_bad_noise_multipliers_are_refused(multiplier):
    with pytest.raises(DpbnnError, match="noise_multiplier"):
        add_noise(clipped(), multiplier, StandardNoise(Randomness.from_seed(0)), 0)


@pytest.mark.parametrize("sensitivity", [0.0, math.inf, math.nan])
def test_noise_needs_a_finite_sensitivity(sensitivity):
    with pytest.raises(DpbnnError, match="sensitivity"):
        add_noise(clipped(sensitivity), 1.0, StandardNoise(Randomness.from_seed(0)), 0)


def test_parameters_of_any_number_size_and_type_get_noise_on_every_number():
    """Small ones share a draw, large ones are drawn in parts; none is left out, none shares its noise."""
    shapes = [(3,), (600, 700), (), (1,), (70_001,), (5, 0), (2, 3)]
    gradients = {
        str(i): torch.zeros(shape, dtype=[torch.float32, torch.float64][i == 4]) for i, shape in enumerate(shapes)
    }
    noisy = add_noise(ClippedSum(gradients, 1.0), 1.0, StandardNoise(Randomness.from_seed(3)), 0).gradients
    assert [tuple(values.shape) for values in noisy.values()] == shapes
    everything = torch.cat([values.double().flatten() for values in noisy.values()])
    assert (everything != 0).all()
    assert len(everything.unique()) > 0.99 * len(everything)
    assert has_standard_deviation(everything, 1.0)
