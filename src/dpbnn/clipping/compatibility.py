"""Which models can be private, and by which engine: `check_model` refuses the rest by name, with the cure.

A model qualifies if each record's loss depends on that record alone. Known offenders are refused by their type;
everything else is tried on two and three made-up records (never on the user's data): the loss of one record must
not depend on another, no buffer may change, and the engines are tried from the fastest to the most general.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from dpbnn.clipping import book_keeping
from dpbnn.clipping.book_keeping import Recording, ruled_layers
from dpbnn.clipping.objective import Objective
from dpbnn.clipping.per_example import loop_gradients, vmap_gradients
from dpbnn.clipping.per_record import PerRecordGradient
from dpbnn.likelihoods import Likelihood
from dpbnn.types import DpbnnError, DpbnnWarning, Weights

__all__ = ["ENGINES", "CheckedModel", "check_model"]

Engine = Callable[[Objective, Weights, Tensor, Tensor], dict[str, PerRecordGradient]]

ENGINES: dict[str, Engine] = {
    "book_keeping": book_keeping.per_record_gradients,
    "vmap": vmap_gradients,
    "loop": loop_gradients,
}
"""From the fastest to the most general; all give the same gradients."""

PROBE_SIZES = (2, 3)
"""Two sizes, so that a layer whose first dimension is not the records cannot look as if it were."""


@dataclass(frozen=True)
class CheckedModel:
    """A model that keeps records apart, with the fastest engine that is right for it."""

    objective: Objective
    likelihood_weights: Weights
    num_outputs: int
    engine: str


_checked: WeakKeyDictionary[nn.Module, dict[Any, CheckedModel]] = WeakKeyDictionary()


def check_model(model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> CheckedModel:
    """Refuse a model that cannot be private; of `x` and `y` only shapes and types are looked at.

    Raises:
        DpbnnError: the module's name, what is wrong with it and the cure.

    Guarantees:
        A model that mixes records or keeps statistics of them is refused.
        The decision does not depend on the data.
    """
    _refuse_known_offenders(model)
    key = (likelihood, _mode(model), x.shape[1:], x.dtype, x.device, y.shape[1:], y.dtype)
    known = _checked.setdefault(model, {})
    if key not in known:
        known[key] = _probe(model, likelihood, x, y)
    return known[key]


def _mode(model: nn.Module) -> Any:
    """What can change between two calls on the same model."""
    modules = tuple((id(module), module.training) for module in model.modules())
    return modules, tuple((id(p), p.requires_grad, p.shape, p.dtype) for p in model.parameters())


def _refuse_known_offenders(model: nn.Module) -> None:
    for name, module in model.named_modules():
        label = f"{type(module).__name__} '{name}'"
        if isinstance(module, torch.jit.ScriptModule):
            raise DpbnnError(f"{label} is compiled by TorchScript, which cannot be watched; pass the plain module.")
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise DpbnnError(f"{label} wraps the model; pass the plain module inside it.")
        if hasattr(module, "_orig_mod"):
            raise DpbnnError(f"{label} is compiled by torch.compile, which cannot be watched; pass the plain module.")
        if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise DpbnnError(f"{label} has no shape yet; run it once on a made-up input.")
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise DpbnnError(
                f"{label} mixes records; use GroupNorm (LayerNorm for plain features), or freeze it with eval()."
            )
        if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
            raise DpbnnError(
                f"{label} keeps running statistics; use track_running_stats=False, or freeze it with eval()."
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise DpbnnError("The model has no parameter to train: all have requires_grad=False; unfreeze some.")


def _probe(model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> CheckedModel:
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    with torch.inference_mode(False), torch.enable_grad(), _own_randomness(x.device):
        num_outputs, own = _likelihood_weights(Objective(model, likelihood), weights, likelihood, x, y)
        objective = Objective(model, likelihood, tuple(own))
        recordings = [_record(objective, weights | own, x, y, size) for size in PROBE_SIZES]
        _warn_of_wiped_features(recordings[0])
        engine = _fastest_engine(objective, weights | own, x, y, recordings)
    if engine == "loop":
        warnings.warn(
            "Neither book-keeping nor vmap can differentiate this model; gradients are taken one record at a time, "
            "exactly but slowly.",
            DpbnnWarning,
            stacklevel=4,
        )
    return CheckedModel(objective, own, num_outputs, engine)


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield


def _made_up(x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Records of the right shape and type that have nothing to do with the data."""
    shape = (size, *x.shape[1:])
    made_up = torch.randn(shape, device=x.device).to(x.dtype) if x.is_floating_point() else x.new_zeros(shape)
    return made_up, y.new_zeros(size, *y.shape[1:])


def _likelihood_weights(
    objective: Objective, weights: Weights, likelihood: Likelihood, x: Tensor, y: Tensor
) -> tuple[int, Weights]:
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
    likelihood.check(outputs, made_up_y)
    own = likelihood.initial_weights(outputs.shape[-1])
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


def _record(objective: Objective, weights: Weights, x: Tensor, y: Tensor, size: int) -> Recording:
    """Run made-up records and refuse the model if the loss of one depends on another."""
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
                    f"The model mixes records: the loss of one depends on another's values after {place}. "
                    "Every operation must keep the first dimension, the records, apart."
                )
    return recording


def _gradients(loss: Tensor, taps: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    if not loss.requires_grad or not taps:
        return []
    gradients = torch.autograd.grad(loss, [tap for _, tap in taps], retain_graph=True, allow_unused=True)
    found = [(place, gradient) for (place, _), gradient in zip(taps, gradients, strict=True) if gradient is not None]
    return found[::-1]  # the last contaminated place is the one before the mixing


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
        for recording, size in zip(recordings, PROBE_SIZES, strict=True)
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
