"""The old name of `dpbnn.models.likelihoods`."""

from dpbnn._warn import warn_renamed
from dpbnn.models.likelihoods import *  # noqa: F403
from dpbnn.models.likelihoods import __all__ as __all__

warn_renamed("dpbnn.likelihoods", "dpbnn.models.likelihoods")
