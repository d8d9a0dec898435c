"""Probes: synthetic records of the kinds that data has, and a change to one of them that the others must not notice.

Real records are padded, empty, repeated, coded with special values or of another range, as normal numbers never are,
and models look at that: one that cuts a batch to its longest record lets each record's loss depend on the others'
padding. Each line of the tables below is one such change, with what it reveals and the cure.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["NUM_RECORDS", "KindProbe", "first_noticed"]

NUM_RECORDS, CHANGED = 8, 4
"""Enough for one of the others to have a loss that shows something, also where a network is sure of most."""
FAILURES = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, ArithmeticError)
"""What models raise for records that they cannot take."""
SENTINELS = (-9999.0, 9999.0, 999.0, -99.0, 99.0, -100.0, 1e9)
"""Codes for what is missing, beside those that have a probe of their own."""

PAD_IDS = (1, 2, 3)
"""Numbers that stand for padding in whole-number inputs, beside 0 and the largest one."""

Kind = Callable[[Tensor], Tensor]
"""From random records, normal or whole numbers from 1 on, to records of a kind."""


@dataclass(frozen=True)
class KindProbe:
    """Records of one kind, of which one becomes another kind: `reveals` says what others depend on if they notice."""

    background: Kind
    change: Kind
    reveals: str
    cure: str

    def after(self, values: Tensor) -> Tensor:
        """The records with one of them changed; random numbers for it are those of the record before."""
        records = self.background(values).clone()
        records[CHANGED] = self.change(values.roll(1, 0))[CHANGED]
        return records


def plain(values: Tensor) -> Tensor:
    """As drawn. As a `change` it makes an ordinary record; among plain ones, a copy of the one before."""
    return values


def uneven(values: Tensor) -> Tensor:
    """Each record twice as large as the one before."""
    return values * 2.0 ** _by_record(torch.arange(len(values), device=values.device), values)


def in_unit_range(values: Tensor) -> Tensor:
    """From 0 to 1, as scaled pixels are."""
    return values.abs() % 1


def pixels(values: Tensor) -> Tensor:
    """Whole numbers from 0 to 255."""
    return (values.abs() % 1 * 255).round()


def constant(values: Tensor) -> Tensor:
    """One number in all places of a record."""
    return values[(slice(None), *[slice(1)] * (values.dim() - 1))].expand_as(values)


def repeated(values: Tensor) -> Tensor:
    """The same record every time."""
    return values[:1].expand_as(values)


def low(values: Tensor) -> Tensor:
    """Whole numbers of half the size."""
    return (values + 1) // 2


def highest(values: Tensor) -> Tensor:
    """The largest whole number in all places."""
    return torch.full_like(values, int(values.max()))


def coded(values: Tensor) -> Tensor:
    """All rare special values, one place after the other."""
    limits = torch.finfo(values.dtype)
    codes = values.new_tensor([*SENTINELS, limits.min, limits.max])
    return codes[torch.arange(values.numel(), device=values.device) % len(codes)].view(values.shape)


def filled(value: float) -> Kind:
    """One number in all places of all records."""
    return lambda values: torch.full_like(values, value)


def padded(value: float, *, in_front: bool = False) -> Kind:
    """At least half of each dimension is padding, and more in each record than in the one before."""

    def kind(values: Tensor) -> Tensor:
        records = torch.arange(len(values), device=values.device)
        is_kept = torch.ones_like(values, dtype=torch.bool)
        for dimension, size in enumerate(values.shape[1:], start=1):
            places = torch.arange(size, device=values.device)
            places = (places.flip(0) if in_front else places).view(-1, *[1] * (values.dim() - dimension - 1))
            is_kept &= places < _by_record((size // 2 - records).clamp(min=1), values)
        return torch.where(is_kept, values, value)

    return kind


def _by_record(numbers: Tensor, values: Tensor) -> Tensor:
    """One number for each record, in front of as many dimensions as `values` has."""
    return numbers.view(-1, *[1] * (values.dim() - 1))


MASK = "Do not cut to the longest record of the batch; keep all positions, and mask those of each record by itself."
ENTRY_BY_ENTRY = "Treat it entry by entry, as torch.where(x == {}, ..., x) does, not by a branch for the whole batch."
EACH_ALONE = "Decide for each record by itself, as torch.where does, not by a branch for the whole batch."
CONSTANTS = "Scale inputs with constants that are fixed in advance, not by what the batch holds."
PADDING, RANGE = "where another one's padding ends", "the range of another one's values"


def _special(value: float) -> KindProbe:
    return KindProbe(plain, filled(value), f"a special value ({value}) in another record", ENTRY_BY_ENTRY.format(value))


def _special_target(value: float) -> KindProbe:
    return KindProbe(plain, filled(value), f"a special value ({value}) as another one's target", EACH_ALONE)


RANGES = (
    KindProbe(in_unit_range, plain, RANGE, CONSTANTS),
    KindProbe(in_unit_range, pixels, RANGE, CONSTANTS),
    KindProbe(pixels, plain, RANGE, CONSTANTS),
    KindProbe(uneven, in_unit_range, RANGE, CONSTANTS),
)
NEGATIVE = (_special(-1), _special(-999), KindProbe(padded(-1), plain, PADDING, MASK))
FRACTIONS = (
    KindProbe(plain, coded, "a special value (such as -9999, 9999 or the least number) in another record", EACH_ALONE),
    *(KindProbe(padded(value), plain, PADDING, MASK) for value in (-999, torch.nan)),
)
COUNTS = (
    *(KindProbe(padded(0, in_front=in_front), plain, PADDING, MASK) for in_front in (False, True)),
    KindProbe(plain, padded(0), "zeros at the end of another record", MASK),
    KindProbe(plain, filled(0), "whether another one is all zeros", EACH_ALONE),
    KindProbe(filled(0), plain, "whether another one is all zeros", EACH_ALONE),
    KindProbe(plain, plain, "whether another one equals a third", EACH_ALONE),
    KindProbe(repeated, plain, "whether another one equals it", EACH_ALONE),
    KindProbe(constant, plain, "whether another one is constant", EACH_ALONE),
)
LARGER_COUNTS = (KindProbe(low, highest, "the largest number in another record", "Fix all sizes in advance."),)
LABELS = tuple(map(_special_target, (-1, -100, -999)))
REAL_TARGETS = tuple(map(_special_target, (-1, -999, torch.nan)))

Losses = Callable[[Tensor, Tensor], Tensor]


def first_noticed(
    losses: Losses, alike: Callable[[Tensor, Tensor], bool], x: Tensor, y: Tensor, dtype: torch.dtype
) -> KindProbe | None:
    """The first change to one record that shows in the losses of the others; None if none does.

    Args:
        losses: from inputs and targets; it may raise for what it cannot take.
        alike: whether losses are equal but for rounding.
        x: normal numbers, or whole ones from 1 on.
        y: targets.
        dtype: of the inputs that the model takes.
    """
    known: dict[Kind, Tensor | None] = {}
    others = [record for record in range(len(x)) if record != CHANGED]
    for probe, values, batch in _all_probes(x, y, dtype):
        if probe.background not in known:
            known[probe.background] = _attempt(losses, *batch(probe.background(values)))
        before, after = known[probe.background], _attempt(losses, *batch(probe.after(values)))
        if before is not None and after is not None and not alike(before[others], after[others]):
            return probe
    return None


def _all_probes(
    x: Tensor, y: Tensor, dtype: torch.dtype
) -> Iterator[tuple[KindProbe, Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]]:
    """Each with the values that it is made from, and how what it makes becomes inputs and targets."""
    for probe in _of_inputs(x, dtype):
        yield probe, x, lambda values: (values.to(dtype), y)
    for probe in _of_targets(y):
        yield probe, y, lambda values: (x.to(dtype), values)


def _of_inputs(x: Tensor, dtype: torch.dtype) -> tuple[KindProbe, ...]:
    if not x.numel():
        return ()
    if x.is_floating_point():
        return RANGES + NEGATIVE + FRACTIONS + COUNTS
    ids = sorted({number for number in (*PAD_IDS, int(x.max())) if number <= int(x.max())})
    with_pads = tuple(KindProbe(padded(number), plain, PADDING, MASK) for number in ids)
    return COUNTS + with_pads + LARGER_COUNTS + (NEGATIVE if _may_be_negative(dtype, x.device) else ())


def _of_targets(y: Tensor) -> tuple[KindProbe, ...]:
    if y.is_floating_point():
        return REAL_TARGETS
    return LABELS if _may_be_negative(y.dtype, y.device) else ()


def _may_be_negative(dtype: torch.dtype, device: torch.device) -> bool:
    """Of whole numbers: one outside of a table is an error on a CPU, and leaves a GPU unusable."""
    return dtype.is_signed and device.type == "cpu"


def _attempt(losses: Losses, x: Tensor, y: Tensor) -> Tensor | None:
    """None where there are no losses: a batch that ends in an error releases nothing."""
    try:
        return losses(x, y)
    except FAILURES:
        return None
