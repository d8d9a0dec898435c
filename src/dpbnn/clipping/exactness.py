"""Whether the sum over a large batch can be exact enough: asked before the first step, never of the records."""

from torch import Tensor

from dpbnn.clipping.compatibility import CheckedModel
from dpbnn.clipping.gradient import clip_and_sum
from dpbnn.clipping.made_up import made_up_records
from dpbnn.generators import Generators, drawing_from
from dpbnn.types import Draws, Weights

__all__ = ["refuse_inexact_sums"]


def refuse_inexact_sums(
    checked: CheckedModel,
    where: Weights | Draws,
    x: Tensor,
    y: Tensor,
    largest_batch: int,
    *,
    micro_batch_size: int | None = None,
    precision: str | None = None,
) -> None:
    """Refuse batches of so many records if rounding could move their sum by more than its share of the clip norm.

    That depends on the form of the gradients (`dpbnn.clipping.adding_up`), which those of one synthetic record show: of
    `x` and `y` the shapes and types alone are used.
    """
    masks = Generators.seeded(0)
    with drawing_from(masks):
        x, y = made_up_records(checked.objective, x, y, 1, checked.num_outputs)
    clip_and_sum(
        checked,
        where,
        x,
        y,
        clip_norm=1.0,
        micro_batch_size=micro_batch_size,
        precision=precision,
        together=largest_batch,
        in_float64=True,
        masks=masks,
    )
