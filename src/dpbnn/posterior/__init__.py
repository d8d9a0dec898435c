"""Distributions over weights: one file for each form, one verb, `draw`."""

from dpbnn.posterior.low_rank_gaussian import LowRankGaussian
from dpbnn.posterior.mean_field import MeanField
from dpbnn.posterior.point_estimate import DropoutNetwork, PointEstimate
from dpbnn.posterior.posterior import Posterior
from dpbnn.posterior.weight_samples import WeightSamples

__all__ = [
    "POSTERIORS",
    "DropoutNetwork",
    "LowRankGaussian",
    "MeanField",
    "PointEstimate",
    "Posterior",
    "WeightSamples",
]

POSTERIORS: dict[str, type[Posterior]] = {
    form.kind: form for form in (PointEstimate, DropoutNetwork, MeanField, WeightSamples, LowRankGaussian)
}
"""By the name under which they are saved."""
