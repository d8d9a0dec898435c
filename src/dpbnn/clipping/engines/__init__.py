"""The three engines, from the fastest to the most general; all give the same per-record gradients."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from dpbnn.clipping.engines.book_keeping import per_record_gradients
from dpbnn.clipping.engines.per_example import loop_gradients, vmap_gradients
from dpbnn.clipping.forms.per_record import PerRecordGradient
from dpbnn.clipping.objective import Objective
from dpbnn.types import Weights

__all__ = ["ENGINES", "Engine"]

Engine = Callable[[Objective, Weights, Tensor, Tensor], dict[str, PerRecordGradient]]

ENGINES: dict[str, Engine] = {
    "book_keeping": partial(per_record_gradients, otherwise=loop_gradients),
    "vmap": vmap_gradients,
    "loop": loop_gradients,
}
