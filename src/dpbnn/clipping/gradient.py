"""Per-record gradients, their norms, clip factors and sums: a batch in parts, by the engine that fits the model.

    flat:       sum_i min(1, C / |g_i|) g_i          automatic:  sum_i C g_i / (|g_i| + gamma)

The norm runs over all trained weights together.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from dpbnn.clipping import fused
from dpbnn.clipping.check.compatibility import CheckedModel
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.forms.joint import jointly
from dpbnn.clipping.forms.per_record import Destination, PerRecordGradient
from dpbnn.clipping.objective import wide
from dpbnn.clipping.parts import part_size, parts
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.device.execution import computing_in, full_precision
from dpbnn.device.generators import Generators, default_generators, drawing_from, set_default_generators
from dpbnn.device.streams import hold, side_by_side
from dpbnn.types import ClippedSum, Draws, Weights

__all__ = ["ClippingSettings", "Sums", "cast", "clip_and_sum", "draws_of", "shorten"]

ROUNDING_ROOM = 5e-3
"""Records are clipped to C / (1 + this): rounding of the sum, of its storage in float32 and of the record's own norm
must not carry a record past C. Most of it is `summation.SHARE`, and it may shrink only if that does (docs/clipping.md
has the figures)."""
AUTOMATIC_GAMMA = 0.01
LARGEST_MULTIPLIER = 1e6
LARGEST_NORM = 1e18
"""A gradient beyond this norm is treated as not finite: its square would leave float32."""

# Freed at once: from then on the C library keeps freed blocks up to this size, and does not return their pages to fetch
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
        no_sync: never let the host wait for a device, as a CUDA graph demands.
    """

    clip_norm: float
    style: str = "flat"
    micro_batch_size: int | None = None
    precision: str | None = None
    in_float64: bool = False
    no_sync: bool = False


@dataclass
class Sums:
    """Where the sums over some records go.

    Args:
        memory: by the weight's name; the sums are written here if the records are taken at once.
        adds_up: `memory` holds float64 sums over other records of the batch, to which these are added.
        largest_batch: the most records that the whole batch can have; None: these are all.
    """

    memory: Weights = field(default_factory=dict)
    adds_up: bool = False
    largest_batch: int | None = None


def clip_and_sum(
    checked: CheckedModel,
    where: Weights | Draws,
    x: Tensor,
    y: Tensor,
    settings: ClippingSettings,
    *,
    present: Tensor | None = None,
    sums: Sums | None = None,
    masks: Generators | None = None,
    observe: Callable[[Tensor, float], None] | None = None,
) -> ClippedSum:
    """`clipped_gradient_sum` for a checked model at any weights, or draws of them, as the training loop calls it.

    Args beyond those of `clipped_gradient_sum`:
        where: the weights, or draws of them.
        settings: how the records are clipped and added up.
        present: False for padding, which contributes zero.
        sums: where the sums go.
        masks: generators for the model's draws.
        observe: is called with the norms of each part, which are private.
    """
    where, sums = cast(checked, where), sums or Sums()
    size = part_size(checked, where, settings.micro_batch_size)
    like = {name: wide(values) for name, values in draws_of(where)[0].items()}
    in_parts = sums.adds_up or len(x) > size
    memory = {} if in_parts else sums.memory
    dtype = torch.float64 if settings.in_float64 or in_parts else None
    destinations = {name: Destination(memory.get(name), dtype, sums.largest_batch or len(x)) for name in like}
    total = dict(sums.memory) if sums.adds_up else {}
    with torch.inference_mode(False):
        x, y = _detached(x), _detached(y)
        for part_x, part_y, part_present in parts(x, y, present, size, pads=checked.engine != "loop"):
            for drawing in _secret_draws(checked.draws or settings.no_sync, masks, x.device):
                at_each = []
                with computing_in(settings.precision, x.device), drawing:
                    for weights in draws_of(where):
                        gradients = ENGINES[checked.engine](checked.objective, weights, part_x, part_y)
                        at_each.append(gradients)
            with full_precision(x.device), torch.no_grad():
                gradients = jointly(at_each, where, len(part_x))
                _clip_and_sum_one_part(gradients, part_present, settings, observe, total, destinations)
    for name in like.keys() - total.keys():
        total[name] = like[name].new_zeros((2, *like[name].shape) if isinstance(where, Draws) else like[name].shape)
    types = {name: values.dtype for name, values in like.items()}
    if settings.in_float64 or sums.adds_up:
        return ClippedSum({name: total[name].double() for name in like}, settings.clip_norm, types)
    if len(x) > LARGEST_PART:
        shorten(total, settings.clip_norm)
    return ClippedSum({name: total[name].to(types[name]) for name in like}, settings.clip_norm, types)


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


def cast(checked: CheckedModel, where: Weights | Draws) -> Weights | Draws:
    """The weights in the types and on the device that the model computes in."""
    if isinstance(where, Draws):
        multipliers = [{name: _bounded(values) for name, values in draw.items()} for draw in where.multipliers]
        return Draws(tuple(map(checked.objective.cast, where.weights)), tuple(multipliers))
    return checked.objective.cast(where)


def _bounded(multipliers: Tensor) -> Tensor:
    """0 x inf is NaN: an infinite multiplier would show whether a batch was empty."""
    return multipliers.nan_to_num(0.0, 0.0, 0.0).clamp(-LARGEST_MULTIPLIER, LARGEST_MULTIPLIER)


def draws_of(where: Weights | Draws) -> tuple[Weights, ...]:
    """All draws; weights are the only one."""
    return where.weights if isinstance(where, Draws) else (where,)


def _detached(values: Tensor) -> Tensor:
    """Outside of autograd; a tensor made in inference mode cannot be differentiated and is copied."""
    return values.clone() if values.is_inference() else values.detach()


def _clip_and_sum_one_part(
    gradients: dict[str, PerRecordGradient],
    present: Tensor | None,
    settings: ClippingSettings,
    observe: Callable[[Tensor, float], None] | None,
    total: Weights,
    destinations: Mapping[str, Destination],
) -> None:
    """Add the clipped sums of one part of a batch to the total; the gradients are let go on the way."""
    if not gradients:
        return
    tasks: list[Callable[[], Tensor | None]] = [partial(_squares, values) for values in gradients.values()]
    if settings.no_sync:  # to ask whether it is needed would make the host wait
        tasks += [partial(_make_finite, gradients, name) for name in gradients]
    squares = side_by_side(lambda task: task(), tasks)
    del tasks
    terms = torch.stack([values for values in squares if values is not None])
    if observe is not None:
        norms = terms.sum(dim=0).sqrt()
        observe(norms if present is None else norms[present], settings.clip_norm)
    factors = _factors(terms, present, settings)
    must_clean = not settings.no_sync and not bool(terms.isfinite().all())  # 0 x inf is NaN

    def add(name: str) -> None:
        values = gradients.pop(name)  # what is summed is let go: a large model has no room for both
        hold(values)
        sums = (values.finite() if must_clean else values).weighted_sum(factors, destinations[name])
        total[name] = total[name].add_(sums) if name in total else sums

    side_by_side(add, list(gradients))


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
