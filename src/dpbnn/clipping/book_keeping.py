"""Per-record gradients of all ruled layers from one backward pass, with no parameter gradients at all.

The model runs on weights that do not require gradients. A hook on each layer that has a rule records its
input and output and lets the output require a gradient. One `torch.autograd.grad` then gives the gradient of
every output, from which the rules build per-record gradients (Bu et al. 2023, arXiv 2210.00038).

Guarantees:
    Nothing is left on the user's modules, also when an exception interrupts.
    A weight that is used outside its layer's own forward is noticed and never dropped.
    A recorded tensor that is changed in place afterwards is noticed, and the pass done again on copies.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpbnn.clipping.objective import Objective, full_precision, wide
from dpbnn.clipping.per_record import Dense, PerRecordGradient, combine
from dpbnn.clipping.rules import rule_for
from dpbnn.types import Weights

__all__ = ["NotCovered", "Recording", "per_record_gradients", "record", "ruled_layers"]

PROPERTIES = {"device", "dtype", "is_cuda", "layout", "ndim", "requires_grad", "shape"}


class NotCovered(Exception):
    """Book-keeping cannot account for every weight of this model; another engine must be used."""


@dataclass(frozen=True)
class LayerUse:
    """One call of one ruled layer."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor
    versions: tuple[int, int]

    @property
    def was_changed(self) -> bool:
        """Whether the input or the output was written to after the layer ran."""
        return self.versions != (self.input._version, self.output._version)


@dataclass
class Recording:
    """What one forward pass left behind."""

    outputs: Tensor
    losses: Tensor
    uses: list[LayerUse]
    likelihood_weights: Weights
    stray_weights: set[str] = field(default_factory=set)


def per_record_gradients(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> dict[str, PerRecordGradient]:
    """The gradient of each record's loss with respect to each weight, by the weight's name."""
    recording = record(objective, weights, x, y)
    if recording.stray_weights:
        raise NotCovered(f"used outside their layer: {', '.join(sorted(recording.stray_weights))}")
    if any(len(use.output) != len(x) or len(use.input) != len(x) for use in recording.uses):
        raise NotCovered("a layer's first dimension is not the records")
    outputs = [use.output for use in recording.uses]
    own = list(recording.likelihood_weights.values())
    gradients = torch.autograd.grad(recording.losses.sum(), [*outputs, *own], allow_unused=True)
    with torch.no_grad(), full_precision(x.device):
        return _apply_rules(objective, recording, gradients)


def record(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> Recording:
    """Run the model once; again on copies if it writes into tensors that were recorded."""
    try:
        recording = _record(objective, weights, x, y, Hooks(copy_outputs=objective.writes_in_place))
        if not any(use.was_changed for use in recording.uses):
            return recording
    except RuntimeError as error:
        if "in-place" not in str(error):
            raise
    return _record(objective, weights, x, y, Hooks(copy_inputs=True, copy_outputs=True))


def _record(objective: Objective, weights: Weights, x: Tensor, y: Tensor, hooks: "Hooks") -> Recording:
    watch = WeightWatch({id(weights[name]): name for name in objective.names})
    # One copy of each likelihood weight per record, so that its gradient comes out per record.
    own = {
        name: weights[name].detach().expand(len(x), *weights[name].shape).clone().requires_grad_()
        for name in objective.likelihood_names
    }
    with torch.enable_grad(), hooks.on(ruled_layers(objective), watch), watch:
        outputs = objective.outputs(weights, x)
        losses = objective.losses(outputs, y, own)
    return Recording(outputs, losses, hooks.uses, own, watch.strays)


@dataclass
class Hooks:
    """Records the calls of the ruled layers, for as long as `on` lasts."""

    copy_inputs: bool = False
    copy_outputs: bool = False
    uses: list[LayerUse] = field(default_factory=list)

    @contextmanager
    def on(self, layers: Iterable[tuple[str, nn.Module]], watch: "WeightWatch") -> Iterator[None]:
        """Put the hooks on the ruled layers and take them off again, whatever happens."""
        handles = []
        try:
            for name, module in layers:
                handles.append(module.register_forward_pre_hook(watch.enter, with_kwargs=True))
                keep = partial(self.keep, name, watch)
                handles.append(module.register_forward_hook(keep, prepend=True, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def keep(
        self,
        name: str,
        watch: "WeightWatch",
        module: nn.Module,
        args: tuple[Tensor, ...],
        kwargs: dict[str, Tensor],
        output: Tensor,
    ) -> Tensor:
        """Record one call; what is returned is what the model goes on with."""
        watch.inside_layer = False
        with torch._C.DisableTorchFunction():
            (given,) = (*args, *kwargs.values())
            input = given.detach().clone() if self.copy_inputs else given.detach()
            if not output.requires_grad:
                output.requires_grad_()
            self.uses.append(LayerUse(name, module, input, output, (input._version, output._version)))
            return output.clone() if self.copy_outputs else output


def ruled_layers(objective: Objective) -> list[tuple[str, nn.Module]]:
    """The layers that have a rule and something to train."""
    return [(name, module) for name, (module, _) in objective.owners.items() if rule_for(module)]


class WeightWatch(TorchFunctionMode):
    """Sees every operation, and notes the weights that are used while no ruled layer is running."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.inside_layer = False
        self.strays: set[str] = set()

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A ruled layer starts: what it is called with counts as a use, what it does inside does not."""
        self._note((*args, *kwargs.values()))
        self.inside_layer = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.inside_layer and not _only_asks_for_a_property(func):
            self._note((*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))

    def _note(self, values: Any) -> None:
        for value in values:
            if isinstance(value, (tuple, list)):
                self._note(value)
            elif id(value) in self.names:
                self.strays.add(self.names[id(value)])


def _only_asks_for_a_property(func: Any) -> bool:
    return func.__name__ == "__get__" and func.__self__.__name__ in PROPERTIES


def _apply_rules(
    objective: Objective, recording: Recording, gradients: tuple[Tensor | None, ...]
) -> dict[str, PerRecordGradient]:
    found: dict[str, PerRecordGradient] = {}
    for use, gradient in zip(recording.uses, gradients, strict=False):
        if gradient is None:
            continue
        names = objective.owners[use.name][1]
        rule = rule_for(use.module)
        assert rule is not None
        for parameter, values in rule(use.module, wide(use.input), wide(gradient), names).items():
            name = names[parameter]
            found[name] = combine(found[name], values) if name in found else values
    own = zip(recording.likelihood_weights, gradients[len(recording.uses) :], strict=True)
    found |= {name: Dense(wide(gradient)) for name, gradient in own if gradient is not None}
    return found
