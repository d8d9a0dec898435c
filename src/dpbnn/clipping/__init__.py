"""The clipping engine: per-record gradients, clipped and summed, for any model that keeps records apart."""

from dpbnn.clipping.check.compatibility import CheckedModel, check_model
from dpbnn.clipping.check.exactness import refuse_inexact_sums
from dpbnn.clipping.clipped_sum import clipped_gradient_sum
from dpbnn.clipping.gradient import ClippingSettings, Sums, clip_and_sum

__all__ = [
    "CheckedModel",
    "ClippingSettings",
    "Sums",
    "check_model",
    "clip_and_sum",
    "clipped_gradient_sum",
    "refuse_inexact_sums",
]
