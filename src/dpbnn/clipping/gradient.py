"""Per-record gradients, their norms, clip factors and sums: a batch in parts, by the engine that is right for a model.

    flat:       sum_i min(1, C / |g_i|) g_i          automatic:  sum_i C g_i / (|g_i| + gamma)

The norm runs over all trained weights together.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from dpbnn.clipping import fused
from dpbnn.clipping.check.compatibility import CheckedModel
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.forms.joint import Joint
from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient
from dpbnn.clipping.objective import wide
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.device.execution import computing_in, full_precision
from dpbnn.device.generators import Generators, default_generators, drawing_from, set_default_generators
from dpbnn.device.streams import hold, side_by_side
from dpbnn.types import ClippedSum, Draws, Weights

__all__ = ["ClippingSettings", "cast", "clip_and_sum", "draws_of", "jointly", "part_size", "shorten"]

ROUNDING_ROOM = 5e-3
"""Records are clipped to C / (1 + this): rounding of the sum, of its storage in float32 and of the record's own norm
must not carry a record past C. Most of it is `summation.SHARE`, and it may shrink only if that does (docs/clipping.md
has the figures)."""
AUTOMATIC_GAMMA = 0.01
WRITTEN_OUT_NUMBERS = 2**26
ROWS_ALIKE = 16
"""In matrices of so many rows, or a multiple, kernels for CPUs round all rows alike, for most widths."""
LARGEST_MULTIPLIER = 1e6
LARGEST_NORM = 1e18
"""A gradient beyond this norm is treated as not finite: its square would leave float32."""

# Freed at once: the C library then keeps freed blocks up to this size, where it would give their pages back and fetch
# them again in every step.
torch.empty(30 * 2**18)


@dataclass(frozen=True)
class ClippingSettings:
    """How the records of one step are clipped and added up.

    Args:
        clip_norm: C; infinity means no clipping.
        style: "flat" or "automatic".
        micro_batch_size: records taken through the model at a time.
        precision: the model's, as in `Execution`.
        in_float64: return float64 whatever came, so that the type of the noise does not tell how many records there
            were. Else the sums come in the types of `ClippedSum.types`.
    """

    clip_norm: float
    style: str = "flat"
    micro_batch_size: int | None = None
    precision: str | None = None
    in_float64: bool = False


def clip_and_sum(
    checked: CheckedModel,
    where: Weights | Draws,
    x: Tensor,
    y: Tensor,
    settings: ClippingSettings,
    *,
    present: Tensor | None = None,
    into: Weights | None = None,
    together: int | None = None,
    onto: Weights | None = None,
    masks: Generators | None = None,
    no_sync: bool = False,
    observe: Callable[[Tensor, float], None] | None = None,
) -> ClippedSum:
    """`clipped_gradient_sum` for a checked model at any weights, or draws of them, as the training loop calls it.

    Args beyond those of `clipped_gradient_sum`:
        where: the weights, or draws of them.
        settings: how the records are clipped and added up.
        present: tells records from padding, which contributes zero.
        into: memory for the sums, used where they need not be added up.
        together: the largest number of records in a batch of which these are a part.
        onto: float64 sums of the parts before; these are added to them.
        masks: generators for the model's draws.
        no_sync: never let the host wait for a device, as a CUDA graph demands.
        observe: is called with the norms of each part, which are private.
    """
    where = cast(checked, where)
    size = part_size(checked, where, settings.micro_batch_size)
    is_wide = settings.in_float64 or onto is not None or len(x) > size
    total = _Total(dict(onto or {}), into if len(x) <= size else None, together or len(x), is_wide)
    with torch.inference_mode(False):
        x, y = _plain(x), _plain(y)
        for part_x, part_y, part_present in _parts(x, y, present, size, pads=checked.engine != "loop"):
            for drawing in _secret_draws(checked.draws or no_sync, masks, x.device):
                at_each = []
                with computing_in(settings.precision, x.device), drawing:
                    for weights in draws_of(where):
                        gradients = ENGINES[checked.engine](checked.objective, weights, part_x, part_y)
                        at_each.append(gradients)
            with full_precision(x.device):
                gradients = jointly(at_each, where, len(part_x))
                _clip_and_sum_one_part(gradients, part_present, settings, observe, total, no_sync)
    types = _released_types(where)
    sums = {name: total.sums[name] if name in total.sums else make() for name, make in _zeros(where)}
    if settings.in_float64 or onto is not None:
        return ClippedSum({name: values.double() for name, values in sums.items()}, settings.clip_norm, types)
    if len(x) > LARGEST_PART:
        shorten(sums, settings.clip_norm)
    return ClippedSum({name: values.to(types[name]) for name, values in sums.items()}, settings.clip_norm, types)


def shorten(sums: Weights, clip_norm: float) -> None:
    """Bring float64 sums within `LARGEST_PART` clip norms, so that float32 rounds them by no more than its share.

    For batches that are larger than the plan's data set could make them: the type of the noise follows the plan, and
    must not tell how many records there are. To bring two sums within a ball never takes them further apart.
    """
    if not math.isinf(clip_norm):
        norm = torch.stack([values.double().square().sum() for values in sums.values()]).sum().sqrt()
        factor = (LARGEST_PART * clip_norm / norm).clamp(max=1.0)  # of sums that are zero: 1
        for values in sums.values():
            values.mul_(factor)


def part_size(checked: CheckedModel, where: Weights | Draws, micro_batch_size: int | None) -> int:
    """How many records are taken through the model at a time."""
    size = min(micro_batch_size or _default_micro_batch_size(checked, where), LARGEST_PART)
    is_on_cpu = next(checked.objective.model.parameters()).device.type == "cpu"
    return size - size % ROWS_ALIKE if is_on_cpu and size > ROWS_ALIKE else size


def _parts(
    x: Tensor, y: Tensor, present: Tensor | None, size: int, pads: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Some records at a time; on a CPU with rows of zeros behind them, so that records are rounded alike.

    Kernels take the last few rows of a matrix in another way than the others, and round differently: without padding,
    one record more could change the last bit of another's gradient, and clipping makes a large change of that. For some
    widths and layers it still can; only records that are taken one by one (`size` 1) cannot touch each other.
    """
    if not len(x):
        return
    if present is not None or x.device.type != "cpu" or not pads or size == 1:
        masks = [None] * len(x.split(size)) if present is None else present.split(size)
        yield from zip(x.split(size), y.split(size), masks, strict=True)
        return
    for part_x, part_y in zip(x.split(size), y.split(size), strict=True):
        count = len(part_x)
        full = ROWS_ALIKE * math.ceil(count / ROWS_ALIKE) if size >= ROWS_ALIKE else size
        if full == count:
            yield part_x, part_y, None
            continue
        yield _padded(part_x, full), _padded(part_y, full), torch.arange(full) < count


def _padded(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows - len(values), *values.shape[1:])])


def _secret_draws(
    redirect_at_once: bool, masks: Generators | None, device: torch.device
) -> Iterator[AbstractContextManager[object]]:
    """A context for each pass through the model that it takes to draw from `masks`; the last pass counts.

    Redirecting draws slows every operation. A model that drew nothing in its trial is therefore run as it is; if a
    default generator has moved afterwards, the run is repeated with draws redirected. If the model then draws, it was
    what moved the generators, and they are put back: they must not show that a record made it draw. If it does not,
    another thread moved them.
    """
    if masks is None:
        yield nullcontext()
        return
    if redirect_at_once:
        yield drawing_from(masks)
        return
    before = default_generators(device)
    yield nullcontext()
    if default_generators(device) == before:
        return
    drawn_before = masks.num_draws
    yield drawing_from(masks)
    if masks.num_draws > drawn_before:
        set_default_generators(device, before)


def _released_types(where: Weights | Draws) -> dict[str, torch.dtype]:
    weights = where.weights[0] if isinstance(where, Draws) else where
    return {name: wide(values).dtype for name, values in weights.items()}


def cast(checked: CheckedModel, where: Weights | Draws) -> Weights | Draws:
    """The weights in the types and on the device that the model computes in."""
    if isinstance(where, Draws):
        multipliers = [{name: _bounded(values) for name, values in own.items()} for own in where.multipliers]
        return Draws(tuple(map(checked.objective.cast, where.weights)), tuple(multipliers))
    return checked.objective.cast(where)


def _bounded(multipliers: Tensor) -> Tensor:
    """0 x inf is NaN: an infinite multiplier would show whether a batch was empty."""
    return multipliers.nan_to_num(0.0, 0.0, 0.0).clamp(-LARGEST_MULTIPLIER, LARGEST_MULTIPLIER)


def _zeros(where: Weights | Draws) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """For each weight the sum over no records."""
    for name, values in (where.weights[0] if isinstance(where, Draws) else where).items():
        like = wide(values)
        shape = (2, *like.shape) if isinstance(where, Draws) else like.shape
        yield name, partial(torch.zeros, shape, dtype=like.dtype, device=like.device)


def _plain(values: Tensor) -> Tensor:
    """Outside of autograd; a tensor made in inference mode could not be recorded and is copied."""
    return values.clone() if values.is_inference() else values.detach()


def draws_of(where: Weights | Draws) -> tuple[Weights, ...]:
    """All draws; weights are the only one."""
    return where.weights if isinstance(where, Draws) else (where,)


def jointly(
    at_each: list[dict[str, PerRecordGradient]], where: Weights | Draws, records: int
) -> dict[str, PerRecordGradient]:
    """The per-record gradients by weight, joint over the draws at each of which some were taken; those are let go."""
    if not isinstance(where, Draws):
        return at_each.pop()
    with torch.no_grad():
        names = {name: None for part in at_each for name in part}
        return {name: _joint(name, at_each, where, records) for name in names}


def _joint(name: str, at_each: list[dict[str, PerRecordGradient]], where: Draws, records: int) -> PerRecordGradient:
    """A draw whose gradients do not reach this weight counts as zeros."""
    like = wide(where.weights[0][name])
    terms = [part.pop(name) if name in part else Dense(like.new_zeros(records, *like.shape)) for part in at_each]
    return Joint.of(terms, [multipliers[name] for multipliers in where.multipliers])


def _default_micro_batch_size(checked: CheckedModel, where: Weights | Draws) -> int:
    """As many as a part may have, unless gradients are written out for every record and would take too much memory."""
    if isinstance(where, Draws):
        written_out = 2 * len(where.weights) * checked.numbers_written_out
    elif checked.engine == "book_keeping" and next(iter(where.values())).is_cuda:
        device = next(iter(where.values())).device
        return max(1, _room_on(device) // max(1, 4 * checked.numbers_written_out))
    elif checked.engine == "book_keeping":
        return LARGEST_PART
    else:
        written_out = sum(values.numel() for values in where.values())
    return max(1, WRITTEN_OUT_NUMBERS // max(1, written_out))


@cache
def _room_on(device: torch.device) -> int:
    """Bytes on a GPU for gradients that are written out; by its size alone, so that parts are the same every time."""
    return torch.cuda.get_device_properties(device).total_memory // 8


@dataclass
class _Total:
    """The sums over the parts so far, of a batch of so many records `together`; in float64 if that `is_wide`.

    `into` is memory for the sums of the only part.
    """

    sums: Weights
    into: Weights | None
    together: int
    is_wide: bool

    def add(self, name: str, values: PerRecordGradient, factors: Tensor) -> None:
        """Add the weighted sum of these gradients to what there is."""
        place = None if self.into is None else self.into[name]
        found = values.weighted_sum(factors, place, self.together, torch.float64 if self.is_wide else None)
        self.sums[name] = self.sums[name].add_(found) if name in self.sums else found


@torch.no_grad()
def _clip_and_sum_one_part(
    gradients: dict[str, PerRecordGradient],
    present: Tensor | None,
    settings: ClippingSettings,
    observe: Callable[[Tensor, float], None] | None,
    total: _Total,
    no_sync: bool,
) -> None:
    if not gradients:
        return
    names, found = list(gradients), dict(gradients)
    tasks: list[Callable[[], Tensor | None]] = [partial(_squares, found[name]) for name in names]
    if no_sync:  # to ask whether it is needed would make the host wait
        tasks += [partial(_make_finite, gradients, name) for name in names]
    squares = side_by_side(lambda task: task(), tasks)
    del found, tasks
    terms = torch.stack([values for values in squares if values is not None])
    if observe is not None:
        norms = terms.sum(dim=0).sqrt()
        observe(norms if present is None else norms[present], settings.clip_norm)
    factors = _factors(terms, present, settings)
    must_clean = not no_sync and not bool(terms.isfinite().all())  # 0 x inf is NaN

    def add(name: str) -> None:
        values = gradients.pop(name)  # what is summed is let go: a large model has no room for both
        hold(values)
        total.add(name, values.finite() if must_clean else values, factors)

    side_by_side(add, names)


def _squares(values: PerRecordGradient) -> Tensor:
    hold(values)
    return values.squared_norms()


def _make_finite(gradients: dict[str, PerRecordGradient], name: str) -> None:
    hold(gradients[name])
    gradients[name] = gradients[name].finite()


def _factors(terms: Tensor, present: Tensor | None, settings: ClippingSettings) -> Tensor:
    """What each record's gradient is multiplied with, from the terms of its squared norm; zero drops it."""
    limit, offset = settings.clip_norm / (1 + ROUNDING_ROOM), AUTOMATIC_GAMMA if settings.style == "automatic" else None
    if fused.is_used_for(terms):
        return fused.factors(terms, present, largest=LARGEST_NORM, limit=limit, offset=offset)
    squared_norms = terms.sum(dim=0)
    kept = squared_norms <= LARGEST_NORM**2
    if present is not None:
        kept = kept & present
    if math.isinf(limit):
        factors = torch.ones_like(squared_norms)
    elif offset is not None:
        factors = limit / (squared_norms.sqrt() + offset)
    else:
        factors = (squared_norms.rsqrt() * limit).clamp(max=1.0)
    return (factors * kept).nan_to_num(0.0)
