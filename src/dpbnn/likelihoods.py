"""The old name of `dpbnn.models.likelihoods`."""

from dpbnn._deprecated import warn_renamed
from dpbnn.models.likelihoods import (
    LIKELIHOODS,
    LOG_STD_RANGE,
    Bernoulli,
    Categorical,
    HeteroscedasticGaussian,
    HomoscedasticGaussian,
    Likelihood,
    Moments,
    Probabilities,
)

__all__ = [
    "LIKELIHOODS",
    "LOG_STD_RANGE",
    "Bernoulli",
    "Categorical",
    "HeteroscedasticGaussian",
    "HomoscedasticGaussian",
    "Likelihood",
    "Moments",
    "Probabilities",
]

warn_renamed("dpbnn.likelihoods", "dpbnn.models.likelihoods")
