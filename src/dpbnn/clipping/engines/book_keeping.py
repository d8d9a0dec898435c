"""Per-record gradients of all ruled layers from one backward pass, with no parameter gradients at all.

The model runs on weights that do not require gradients. Each call of a layer that has a rule is recorded, and its
output lets a gradient through. One `torch.autograd.grad` then brings the gradient of every output, from which the rules
build per-record gradients as soon as it is there, so that nothing is kept that is not needed (Bu et al. 2023,
arXiv 2210.00038). Weights outside of layers get one copy per record (`dpbnn.clipping.engines.hooks`).

Guarantees:
    Nothing is left on the user's modules, also when an exception interrupts.
    A weight whose use is not accounted for is noticed and never dropped.
    A recorded tensor that is changed in place afterwards is noticed, and the pass done again on copies.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from dpbnn._internals import without_torch_function, writes_to
from dpbnn.clipping.engines.hooks import Call, Watch
from dpbnn.clipping.engines.layout import FIRST, Layout
from dpbnn.clipping.forms.deferred import Deferred, made
from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient
from dpbnn.clipping.forms.tied import combined
from dpbnn.clipping.objective import Objective, wide
from dpbnn.clipping.rules import rule_for
from dpbnn.device.execution import full_precision, without_autocast
from dpbnn.device.streams import beside, join
from dpbnn.types import Weights

__all__ = ["NotCovered", "Recording", "Use", "per_record_gradients", "record"]

SMALL = 2**22
"""Numbers of a layer up to which its rule runs beside the rest of the backward pass, while that is being recorded."""


class NotCovered(Exception):
    """Book-keeping cannot account for every weight of this model; another engine must be used."""


@dataclass(eq=False)
class Use:
    """One call of a ruled layer. Its inputs are let go once its rule has them; `prepared` was made of them ahead."""

    call: Call
    inputs: tuple[Tensor, ...]
    shape: torch.Size
    layout: Layout
    prepared: Tensor | None = None


def per_record_gradients(
    objective: Objective,
    weights: Weights,
    x: Tensor,
    y: Tensor,
    otherwise: Callable[[Objective, Weights, Tensor, Tensor], dict[str, PerRecordGradient]] | None = None,
) -> dict[str, PerRecordGradient]:
    """The gradient of each record's loss with respect to each weight, by the weight's name.

    `otherwise` gives those of records that take a path through the model that is not covered.
    """
    treatment = objective.treatment
    try:
        given = (
            {name: _channels_last(values) for name, values in weights.items()} if treatment.channels_last else weights
        )
        recording = record(objective, given, x, y)
        if recording.strays:
            raise NotCovered(f"used outside their layer: {', '.join(sorted(recording.strays))}")
        losses = recording.losses
        gradients = torch.autograd.grad(losses, recording.leaves(), torch.ones_like(losses), allow_unused=True)
        for receive, gradient in recording.received(gradients):
            receive(gradient)
        return recording.gradients
    except NotCovered:
        if otherwise is None:
            raise
    except RuntimeError:  # a view that channels last does not allow, for this number of records
        if not treatment.channels_last:
            raise
        objective = objective.treated(replace(treatment, channels_last=False))
        otherwise = partial(per_record_gradients, otherwise=otherwise)
    return otherwise(objective, weights, x, y)


def _channels_last(values: Tensor) -> Tensor:
    """Copied also where one channel makes both layouts the same: an operation goes by what its weights say."""
    if values.dim() != 4:
        return values
    return torch.empty_like(values, memory_format=torch.channels_last).copy_(values)


def record(
    objective: Objective, weights: Weights, x: Tensor, y: Tensor, kind: "type[Recording] | None" = None
) -> "Recording":
    """Run the model once; again on copies if it writes into tensors that were recorded."""
    make = kind or Recording
    try:
        recording = make(objective, len(x), copy_outputs=objective.writes_in_place)
        if recording.run(weights, x, y):
            return recording
    except RuntimeError as error:
        if "in-place" not in str(error):
            raise
    recording = make(objective, len(x), copy_inputs=True, copy_outputs=True)
    recording.run(weights, x, y)
    return recording


class Recording:
    """What one forward pass leaves behind, and what the backward pass then makes of it: `gradients`."""

    losses: Tensor

    def __init__(
        self, objective: Objective, records: int, *, copy_inputs: bool = False, copy_outputs: bool = False
    ) -> None:
        self.objective, self.records = objective, records
        self.copy_inputs, self.copy_outputs = copy_inputs, copy_outputs
        self.uses: list[Use] = []
        self.strays: set[str] = set()
        self.steps: tuple[str, ...] = ()
        self.picks_rows = False
        self.gradients: dict[str, PerRecordGradient] = {}
        self._preparing: torch.cuda.Stream | None = None
        self._branches: list[tuple[torch.cuda.Stream | None, list[Tensor]]] = []
        self._leaves: list[Tensor] = []
        self._receivers: list[Callable[[Tensor], None]] = []

    def run(self, weights: Weights, x: Tensor, y: Tensor) -> bool:
        """The forward pass; False if what was recorded was changed afterwards."""
        trained = {name: weights[name] for name in self.objective.names}
        self.device = x.device
        self._watch = Watch(trained, self.records, self.objective.treatment.steps, self.use, self.copies)
        layers = [
            Call(name, module, names) for name, (module, names) in self.objective.owners.items() if rule_for(module)
        ]
        versions: list[tuple[Tensor, int]] = []
        self._versions = versions
        with torch.enable_grad(), self._watch.on(layers):
            outputs = self.objective.outputs(weights, x)
            copies = {name: self.copies(name, weights[name]) for name in self.objective.likelihood_names}
            self.losses = self.objective.losses(outputs, y, copies)
        self.strays |= self._watch.strays
        self.picks_rows = self._watch.picks_rows
        self.steps = tuple(self._watch.steps)
        del self._watch, self._versions
        return all(writes_to(values) == version for values, version in versions)

    def copies(self, name: str, values: Tensor) -> Tensor:
        """A weight with one copy for each record, so that its gradient comes out per record."""
        with without_torch_function():
            leaf = values.detach().expand(self.records, *values.shape).requires_grad_()
        return self._leaf(leaf, lambda gradient: self._add(name, Dense(wide(gradient))))

    def use(self, call: Call, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Record one call; what is returned is what the model goes on with."""
        with without_torch_function():
            inputs = tuple(values.detach().clone() if self.copy_inputs else values.detach() for values in inputs)
            self._versions += [(values, writes_to(values)) for values in inputs]
            use = Use(call, inputs, output.shape, self.objective.treatment.layouts.get(call.name, FIRST))
            self.uses.append(use)
            # No tensor may own this recording, whose losses own the tensor: such a ring is never let go.
            receive = partial(type(self).receive, weakref.proxy(self), use)
            if use.layout.dimension is None:
                leaf = output.detach().expand(self.records, *output.shape).requires_grad_()
                self._watch.share(output, self._leaf(leaf, receive), call.weights.values())
                return output
            if any(use.layout.records_first(values, self.records) is None for values in (*inputs, output)):
                self.strays.update(call.weights.values())
            if output.requires_grad:
                output.register_hook(receive)
                return output
            self._leaf(output.requires_grad_(), receive)
            return output.clone() if self.copy_outputs else output

    def _prepare(self) -> None:
        """In a recording: make what rules of small layers need, beside the start of the backward pass."""
        with beside() as self._preparing, torch.no_grad():
            for use in reversed(self.uses) if self._preparing is not None else ():
                rule = rule_for(use.call.module)
                if rule and rule.prepare and use.layout == FIRST and use.inputs[0].numel() < SMALL:
                    use.prepared = rule.prepare(use.call.module, use.inputs[0], use.shape)

    def leaves(self) -> list[Tensor]:
        """The tensors that a backward pass must bring gradients of; what lies between is received on the way."""
        self._prepare()
        leaves, self._leaves = self._leaves, []
        return leaves

    def received(self, gradients: Sequence[Tensor | None]) -> Iterator[tuple[Callable[[Tensor], None], Tensor]]:
        """The gradients of these tensors, each with what makes use of it; this ends the backward pass."""
        receivers, self._receivers = self._receivers, []
        for receive, gradient in zip(receivers, gradients, strict=True):
            if gradient is not None:
                yield receive, gradient
        self._join_branches()

    def receive(self, use: Use, gradient: Tensor) -> None:
        """The gradient of a recorded output is there: make of it the gradients of the weights behind it.

        Products that are written out may be as coarse as the model's own: their norms are those of the very numbers.
        """
        call, rule = use.call, rule_for(use.call.module)
        given, use.inputs = use.inputs, ()
        inputs = [use.layout.records_first(values, self.records) for values in given]
        g = gradient if use.layout.dimension is None else use.layout.records_first(gradient, self.records)
        tensors = [values for values in (*inputs, g) if values is not None]
        assert rule is not None
        assert len(tensors) == len(inputs) + 1
        again = any(name in self.gradients for name in call.weights.values())
        if again:  # what an earlier branch has made is added to
            self._join_branches()
        is_beside = not again and sum(values.numel() for values in tensors) <= SMALL
        prepared = [use.prepared] if is_beside and use.prepared is not None else []
        with beside() if is_beside else nullcontext() as stream, torch.no_grad(), without_autocast(self.device):
            if prepared:
                join(self._preparing)
            names = self._deferred(call, tensors[0], tensors[-1])
            gradients = rule.gradients(call.module, *map(wide, tensors), names, *prepared) if names else {}
            if gradients.keys() != names.keys():
                raise NotCovered(f"the rule of {type(call.module).__name__} left out {names.keys() - gradients.keys()}")
            for parameter, values in gradients.items():
                self._add(names[parameter], values)
        if is_beside:
            self._branches.append((stream, tensors))  # whose memory must not be used again before the branch is done

    def _join_branches(self) -> None:
        join(self._preparing, *(stream for stream, _ in self._branches))
        self._branches.clear()

    def _deferred(self, call: Call, a: Tensor, g: Tensor) -> dict[str, str]:
        """The parameters that are left to the rule: a large linear layer's weight is measured now and summed later."""
        names, module = dict(call.weights), call.module
        shape = module.weight.shape if isinstance(module, nn.Linear) and "weight" in names else None
        if shape is not None and Deferred.keeps_less(a, g, shape):
            with full_precision(self.device):
                self._add(names.pop("weight"), Deferred.of(a, g, shape))
        return names

    def _add(self, name: str, values: PerRecordGradient) -> None:
        if name not in self.gradients:
            self.gradients[name] = values
            return
        with torch.no_grad(), without_autocast(self.device):
            self.gradients[name] = combined(made(self.gradients[name]), made(values))

    def _leaf(self, leaf: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        self._leaves.append(leaf)
        self._receivers.append(receive)
        return leaf
