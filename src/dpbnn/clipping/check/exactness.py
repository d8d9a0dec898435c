"""Whether the sum over a large batch can be exact enough: asked before the first step, and of no record."""

import torch
from torch import Tensor

from dpbnn.clipping.check.compatibility import CheckedModel
from dpbnn.clipping.check.synthetic import synthetic_records
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.forms.joint import jointly
from dpbnn.clipping.gradient import cast, draws_of
from dpbnn.clipping.parts import part_size
from dpbnn.clipping.summation import refuse_inexact
from dpbnn.device.execution import computing_in, full_precision
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.types import Draws, Weights

__all__ = ["refuse_inexact_sums"]


def refuse_inexact_sums(
    checked: CheckedModel,
    where: Weights | Draws,
    x: Tensor,
    y: Tensor,
    largest_batch: int,
    micro_batch_size: int | None = None,
    precision: str | None = None,
) -> None:
    """Refuse batches of so many records if rounding could move their sum by more than its share of the clip norm.

    How much a sum is rounded depends on the form of the gradients, and that on the number of records in a part. So the
    gradients of a part of synthetic records are taken; of `x` and `y` only shapes and types are used.
    """
    where = cast(checked, where)
    part = min(part_size(checked, where, micro_batch_size), largest_batch)
    with drawing_from(Generators.seeded(0)), torch.inference_mode(False), computing_in(precision, x.device):
        x, y = synthetic_records(checked.objective, x, y, part, checked.num_outputs)
        at_each = [ENGINES[checked.engine](checked.objective, weights, x, y) for weights in draws_of(where)]
        with full_precision(x.device), torch.no_grad():
            gradients = jointly(at_each, where, part)
    refuse_inexact(largest_batch, part, max((values.terms for values in gradients.values()), default=1))
