"""Where a layer's tensors hold the records.

Mostly in the first dimension; but not in attention with the sequence first, in layers on merged dimensions, and in
tables that are asked for the same positions in every record. A trial on synthetic records finds out
(`dpbnn.clipping.check.coverage`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["FIRST", "NOWHERE", "Layout", "ModelLayout"]


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
class ModelLayout:
    """Where a model's tensors hold the records: by layer (or weight), if not in the first dimension.

    `operations` are those on tensors that hold no records, in order; None in the trial that finds them.
    `channels_last` lays out the weights of convolutions so that their outputs have the channels last, which makes
    pooling on a CPU several times faster.
    """

    layers: Mapping[str, Layout] = field(default_factory=dict)
    operations: tuple[str, ...] | None = ()
    channels_last: bool = False
