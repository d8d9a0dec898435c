"""Where a layer's tensors hold the records, and what is done with weights that meet them outside of any layer.

Layers mostly see the records first. Attention with the sequence first, layers on merged dimensions and tables that are
asked for the same positions in every record do not; a trial on synthetic records finds out, and compares the result
with an exact loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["FIRST", "NOWHERE", "Layout", "Treatment"]


@dataclass(frozen=True)
class Layout:
    """The dimension that holds the records; None if there are none.

    `merged` says how a first dimension of records and positions is ordered: "blocks" (all positions of a record
    together) or "interleaved" (all records of a position together).
    `each` is how many positions every record has then: where the values decide how many, rows cannot be told apart.
    """

    dimension: int | None = 0
    merged: str = ""
    each: int = 1

    def records_first(self, values: Tensor, records: int) -> Tensor | None:
        """A view with the records first, or None if they cannot be where they are expected."""
        if self.dimension is None:
            return values.expand(records, *values.shape)
        if values.dim() <= self.dimension:
            return None
        if self.merged:
            if len(values) != records * self.each:
                return None
            blocks = self.merged == "blocks"
            return values.unflatten(0, (records, -1)) if blocks else values.unflatten(0, (-1, records)).transpose(0, 1)
        if values.shape[self.dimension] != records:
            return None
        return values.movedim(self.dimension, 0) if self.dimension else values


FIRST = Layout()
NOWHERE = Layout(None)


@dataclass(frozen=True)
class Treatment:
    """What a trial found: layouts by the name of the layer (or weight), records first where none is given.

    `steps` are the operations on tensors that hold no records, in order; None while they are being found out.
    `channels_last` lays the weights of images' convolutions out so that what they give has its channels last, which on
    a CPU makes pooling several times faster.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    steps: tuple[str, ...] | None = ()
    channels_last: bool = False
