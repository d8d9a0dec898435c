"""The old name of `dpbnn.models.priors`."""

from dpbnn._warn import warn_renamed
from dpbnn.models.priors import Flat, Gaussian, Grouped, Laplace, Prior, ScaleMixture

__all__ = ["Flat", "Gaussian", "Grouped", "Laplace", "Prior", "ScaleMixture"]

warn_renamed("dpbnn.priors", "dpbnn.models.priors")
