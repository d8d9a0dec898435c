"""Kernel of `dpbnn.models.likelihoods.cross_entropy`."""

import triton
import triton.language as tl

__all__ = ["cross_entropy"]


@triton.jit(do_not_specialize=["records"])
def cross_entropy(
    logits, labels, losses, slopes, records, classes,
    IS_WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program for some records: ``-log softmax(f)_y`` and its gradient by f; NaN for a label that is no class."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < records)[:, None] & (columns < classes)[None, :]
    places = rows[:, None] * classes + columns[None, :]
    numbers = tl.load(logits + places, mask=inside, other=float("-inf"))
    numbers = tl.where((rows < records)[:, None], numbers, 0.0).to(tl.float64 if IS_WIDE else tl.float32)
    label = tl.load(labels + rows, mask=rows < records, other=0).to(tl.int64)
    shifted = numbers - tl.max(numbers, axis=1)[:, None]
    powers = tl.exp(shifted)
    total = tl.sum(powers, axis=1)
    is_label = columns[None, :] == label[:, None]
    at_label = tl.sum(tl.where(is_label & inside, shifted, 0.0), axis=1)
    is_class = (label >= 0) & (label < classes)
    loss = tl.where(is_class, tl.log(total) - at_label, float("nan"))
    slope = tl.where(is_class[:, None], powers / total[:, None] - tl.where(is_label, 1.0, 0.0), float("nan"))
    tl.store(losses + rows, loss, mask=rows < records)
    tl.store(slopes + places, slope, mask=inside)
