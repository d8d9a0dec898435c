"""The sum of clipped per-record gradients: everything that private data goes through before the noise.

    >>> import torch, dpbnn
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
    >>> clipped = dpbnn.clipped_gradient_sum(model, dpbnn.Categorical(), x, y, clip_norm=1.0)
    >>> sorted(clipped.gradients), clipped.sensitivity
    (['bias', 'weight'], 1.0)

    flat:       sum_i min(1, C / |g_i|) g_i          automatic:  sum_i C g_i / (|g_i| + gamma)

The norm runs over all trained weights together. Three engines give the same result; the fastest that is right
for the model is chosen by itself (`dpbnn.clipping.check.compatibility`).
"""

import math

from torch import Tensor, nn

from dpbnn import _validate
from dpbnn.clipping.check.compatibility import check_model
from dpbnn.clipping.check.exactness import refuse_inexact_sums
from dpbnn.clipping.gradient import ClippingSettings, clip_and_sum
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.plan import CLIPPING_STYLES, checked_level
from dpbnn.types import ClippedSum

__all__ = ["clipped_gradient_sum"]


def clipped_gradient_sum(
    model: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    clip_norm: float,
    *,
    clipping: str = "flat",
    micro_batch_size: int | None = None,
) -> ClippedSum:
    """Sum the clipped gradients of the records ``(x, y)`` at the model's weights. The result is private.

    Args:
        model: any module that keeps records apart; it is neither wrapped nor changed.
        likelihood: gives each record's loss from the model's output.
        x: inputs, records first.
        y: targets, records first.
        clip_norm: C; infinity means no clipping.
        clipping: "flat" or "automatic".
        micro_batch_size: records taken through the model at a time; changes memory, not the result.

    Returns:
        ``gradients`` by weight name (float32 or wider) and their ``sensitivity``, C.

    Guarantees:
        Adding or removing any record, whatever its values, moves the sum by at most C, as long as the others' gradients
            are rounded as before (docs/privacy.md; with ``micro_batch_size=1`` they always are).
        A record whose loss or gradient is not finite contributes zero.
        Values never raise, but for whole numbers outside of a table that the model looks them up in.
        An empty batch gives zeros.
        The model is left as it was, also when an exception interrupts.
    """
    _check_arguments(x, y, clip_norm, clipping, micro_batch_size)
    checked = check_model(model, likelihood, x, y)
    weights, is_large = checked.objective.model_weights() | checked.likelihood_weights, len(x) > LARGEST_PART
    if is_large:
        refuse_inexact_sums(checked, weights, x, y, len(x), micro_batch_size)
    settings = ClippingSettings(clip_norm, clipping, micro_batch_size, in_float64=is_large)
    return clip_and_sum(checked, weights, x, y, settings)


def _check_arguments(x: Tensor, y: Tensor, clip_norm: float, clipping: str, micro_batch_size: int | None) -> None:
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or len(x) != len(y):
        kinds = dict.fromkeys(type(values).__name__ for values in (x, y) if not isinstance(values, Tensor))
        came = " and ".join(kinds) or "different numbers of rows"
        raise DpbnnError(f"x and y must be tensors with one row per record, got {came}.")
    if clip_norm != math.inf:
        checked_level("clip_norm", clip_norm)
    _validate.one_of("clipping", clipping, CLIPPING_STYLES)
    if micro_batch_size is not None:
        _validate.whole_number("micro_batch_size", micro_batch_size)
