"""Trying a model out on made-up records: does it keep records apart, and which engine is right for it?

The loss of one record must depend on that record alone, in value and in gradient; the same input and the same random
numbers must give the same result again; no buffer and no weight may change. The engines are tried from the fastest to
the most general. Nothing of the user's data is looked at but its shape and type.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpbnn.clipping import book_keeping
from dpbnn.clipping.book_keeping import Recording, ruled_layers
from dpbnn.clipping.objective import Objective
from dpbnn.clipping.per_example import loop_gradients, vmap_gradients
from dpbnn.clipping.per_record import PerRecordGradient
from dpbnn.likelihoods import Likelihood
from dpbnn.types import DpbnnError, DpbnnWarning, Weights

__all__ = ["ENGINES", "Verdict", "try_out"]

Engine = Callable[[Objective, Weights, Tensor, Tensor], dict[str, PerRecordGradient]]

ENGINES: dict[str, Engine] = {
    "book_keeping": book_keeping.per_record_gradients,
    "vmap": vmap_gradients,
    "loop": loop_gradients,
}
"""From the fastest to the most general; all give the same gradients."""

SIZES = (2, 3)
"""Two sizes, so that a layer whose first dimension is not the records cannot look as if it were."""
LARGER_SIZE = 16
APART = "Every operation must keep the first dimension, the records, apart."


@dataclass(frozen=True)
class Verdict:
    """What a trial found; it holds no reference to the model."""

    likelihood_weights: Weights
    num_outputs: int
    engine: str


def try_out(model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> Verdict:
    """Refuse a model that does not keep records apart, or choose the engine for it."""
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    with torch.inference_mode(False), torch.enable_grad(), _own_randomness(x.device):
        num_outputs, own = _outputs(Objective(model, likelihood), weights, x, y)
        objective = Objective(model, likelihood, tuple(own))
        recordings = [_record(objective, weights | own, x, y, size) for size in SIZES]
        _refuse_mixing_in_value(objective, weights | own, x, y)
        _refuse_changed_weights(weights)
        _warn_of_wiped_features(recordings[0])
        engine = _fastest_engine(objective, weights | own, x, y, recordings)
    if engine == "loop":
        warnings.warn(
            "Neither book-keeping nor vmap can differentiate this model; gradients are taken one record at a time, "
            "exactly but slowly.",
            DpbnnWarning,
            stacklevel=4,
        )
    return Verdict(own, num_outputs, engine)


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


def _made_up(x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Records of the right shape and type that have nothing to do with the data."""
    shape = (size, *x.shape[1:])
    made_up = torch.randn(shape, device=x.device).to(x.dtype) if x.is_floating_point() else x.new_zeros(shape)
    return made_up, y.new_zeros(size, *y.shape[1:])


def _outputs(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> tuple[int, Weights]:
    """How many outputs the model has, and the likelihood's weights for them."""
    made_up_x, made_up_y = _made_up(x, y, 2)
    with torch.no_grad():
        outputs = _first_run(objective, weights, made_up_x)
        for name in objective.changed_buffers(weights, made_up_x):
            raise DpbnnError(
                f"Buffer '{name}' changes while the model runs: state that records leave behind has no noise on it; "
                "remove it, or freeze its module with eval()."
            )
    if outputs.shape[:1] != (2,):
        raise DpbnnError(
            f"The model must return one row per record, got shape {list(outputs.shape)} for 2 records of shape "
            f"{list(x.shape[1:])}."
        )
    objective.likelihood.check(outputs, made_up_y)
    own = objective.likelihood.initial_weights(outputs.shape[-1])
    return outputs.shape[-1], {name: values.to(x.device) for name, values in own.items()}


def _first_run(objective: Objective, weights: Weights, x: Tensor) -> Tensor:
    try:
        return objective.outputs(weights, x)
    except DpbnnError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DpbnnError(
            f"Records of shape {list(x.shape[1:])} and type {x.dtype} do not fit the model: {reason}"
        ) from error


def _refuse_mixing_in_value(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> None:
    """Run the same records twice, then with one of them changed: the others' losses must stay as they were."""
    made_up_x, made_up_y = _made_up(x, y, LARGER_SIZE)

    def losses(records: Tensor) -> Tensor:
        torch.manual_seed(1)
        with torch.no_grad():
            return objective.losses(objective.outputs(weights, records), made_up_y, weights)

    first = losses(made_up_x)
    if not _alike(losses(made_up_x), first):
        raise DpbnnError(
            "The model gives different losses for the same records and the same random numbers: it keeps state between "
            "calls, which has no noise on it, or draws random numbers outside of torch's generator. Remove that."
        )
    changed = made_up_x.clone()
    changed[0] = 1 - 30 * made_up_x[0]  # far out, so that a maximum or a sum over the batch would move
    try:
        others = losses(changed)[1:]
    except (IndexError, RuntimeError):  # the only other whole number that was to hand is out of range
        return
    if not _alike(others, first[1:]):
        raise DpbnnError(f"The model mixes records: the loss of one depends on another's values. {APART}")


def _alike(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def _record(objective: Objective, weights: Weights, x: Tensor, y: Tensor, size: int) -> Recording:
    """Record a run, and refuse the model if the gradient of one record's loss reaches another record."""
    made_up_x, made_up_y = _made_up(x, y, size)
    if made_up_x.is_floating_point():
        try:
            return _record_apart(objective, weights, made_up_x.requires_grad_(), made_up_y)
        except RuntimeError:  # a model may overwrite its input in ways that autograd cannot follow back to it
            made_up_x = made_up_x.detach()
    return _record_apart(objective, weights, made_up_x, made_up_y)


def _record_apart(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> Recording:
    recording = book_keeping.record(objective, weights, x, y)
    taps = [("the input", x)] if x.requires_grad else []
    taps += [(f"'{use.name}'", use.output) for use in recording.uses if len(use.output) == len(x)]
    for record in range(len(x)):
        others = torch.arange(len(x), device=x.device) != record
        for place, gradient in _gradients(recording.losses[record], taps):
            if gradient[others].any():
                raise DpbnnError(
                    f"The model mixes records: the loss of one depends on another's values after {place}. {APART}"
                )
    return recording


def _gradients(loss: Tensor, taps: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    if not loss.requires_grad or not taps:
        return []
    gradients = torch.autograd.grad(loss, [tap for _, tap in taps], retain_graph=True, allow_unused=True)
    found = [(place, gradient) for (place, _), gradient in zip(taps, gradients, strict=True) if gradient is not None]
    return found[::-1]  # the last contaminated place is the one before the mixing


def _refuse_changed_weights(weights: Weights) -> None:
    for name, values in weights.items():
        if values._version > 0:
            raise DpbnnError(
                f"Weight '{name}' is rewritten while the model runs, without noise; let only the training change it."
            )


def _fastest_engine(objective: Objective, weights: Weights, x: Tensor, y: Tensor, recordings: list[Recording]) -> str:
    if _all_covered(objective, recordings):
        return "book_keeping"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap warns where it is slow
            vmap_gradients(objective, weights, *_made_up(x, y, 2))
    except (RuntimeError, NotImplementedError, ValueError):
        return "loop"
    return "vmap"


def _all_covered(objective: Objective, recordings: list[Recording]) -> bool:
    """Every trained weight belongs to ruled layers alone, is used nowhere else, and records come first."""
    return len(ruled_layers(objective)) == len(objective.owners) and all(
        not recording.stray_weights and all(len(use.input) == len(use.output) == size for use in recording.uses)
        for recording, size in zip(recordings, SIZES, strict=True)
    )


def _warn_of_wiped_features(recording: Recording) -> None:
    for use in recording.uses:
        if isinstance(use.module, nn.GroupNorm):
            per_group = use.input[0].numel() // use.module.num_groups
            if per_group <= 2:
                warnings.warn(
                    f"GroupNorm '{use.name}' normalises groups of {per_group} number{'s' * (per_group > 1)} and wipes "
                    "its input out; use LayerNorm, or fewer groups.",
                    DpbnnWarning,
                    stacklevel=5,
                )
