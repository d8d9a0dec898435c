"""Per-record gradients of all ruled layers from one backward pass, with no parameter gradients at all.

The model runs on weights that do not require gradients. Each call of a layer that has a rule is traced, and its output
requires a gradient. One `torch.autograd.grad` then computes the gradient of every such output. From each, a rule
computes per-record gradients at once, so that nothing is kept longer than needed (Bu et al. 2023, arXiv 2210.00038).
Weights outside of layers get one copy per record (`dpbnn.clipping.engines.hooks`).

Guarantees:
    Nothing is left on the user's modules, also when an exception interrupts.
    A weight whose use is not accounted for is noticed and never dropped.
    A traced tensor that is changed in place afterwards is noticed, and the pass done again on copies.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from dpbnn._internals import without_torch_function, writes_to
from dpbnn.clipping.engines.hooks import Call, ForwardHooks
from dpbnn.clipping.engines.layout import FIRST, Layout
from dpbnn.clipping.forms.combine import combine
from dpbnn.clipping.forms.deferred import Deferred
from dpbnn.clipping.forms.per_record import Dense, PerRecordGradient
from dpbnn.clipping.objective import Objective, wide
from dpbnn.clipping.rules import rule_for
from dpbnn.clipping.rules.linear import linear_rule
from dpbnn.device.execution import full_precision, without_autocast
from dpbnn.device.streams import beside, join
from dpbnn.types import Weights

__all__ = ["NotCovered", "Trace", "Use", "per_record_gradients"]

SMALL = 2**22
"""The rule of a layer with up to this many numbers runs in a stream of its own, while a CUDA graph is captured."""


class NotCovered(Exception):
    """Book-keeping cannot account for every weight of this model; another engine must be used."""


@dataclass(eq=False)
class Use:
    """One call of a ruled layer. Its inputs are let go once its rule has them; `LayerRule.prepare` made `prepared`."""

    call: Call
    inputs: tuple[Tensor, ...]
    output_shape: torch.Size
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

    `otherwise` takes over where a record's path through the model is not covered.
    """
    layout = objective.layout
    try:
        copies = {name: _channels_last(values) for name, values in weights.items()} if layout.channels_last else weights
        trace = Trace.of(objective, copies, x, y)
        if trace.uncovered:
            raise NotCovered(f"used outside their layer: {', '.join(sorted(trace.uncovered))}")
        losses = trace.losses
        gradients = torch.autograd.grad(losses, trace.leaves(), torch.ones_like(losses), allow_unused=True)
        for receive, gradient in trace.received(gradients):
            receive(gradient)
        return trace.gradients
    except NotCovered:
        if otherwise is None:
            raise
    except RuntimeError:  # a view that channels last does not allow, for this number of records
        if not layout.channels_last:
            raise
        objective = objective.with_layout(replace(layout, channels_last=False))
        otherwise = partial(per_record_gradients, otherwise=otherwise)
    return otherwise(objective, weights, x, y)


def _channels_last(values: Tensor) -> Tensor:
    """Copied also where one channel makes both layouts the same: an operation goes by what its weights say."""
    if values.dim() != 4:
        return values
    return torch.empty_like(values, memory_format=torch.channels_last).copy_(values)


class Trace:
    """What one forward pass leaves behind, and the `gradients` that the backward pass makes of it."""

    losses: Tensor

    def __init__(
        self, objective: Objective, num_records: int, *, copy_inputs: bool = False, copy_outputs: bool = False
    ) -> None:
        self.objective, self.num_records = objective, num_records
        self.copy_inputs, self.copy_outputs = copy_inputs, copy_outputs
        self.uses: list[Use] = []
        self.uncovered: set[str] = set()
        self.operations: tuple[str, ...] = ()
        self.selects_rows = False
        self.gradients: dict[str, PerRecordGradient] = {}
        self._preparing: torch.cuda.Stream | None = None
        self._streams: list[tuple[torch.cuda.Stream | None, list[Tensor]]] = []
        self._leaves: list[Tensor] = []
        self._receivers: list[Callable[[Tensor], None]] = []

    @classmethod
    def of(cls, objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> Self:
        """Run the model once; again on copies if it writes to tensors that were traced."""
        try:
            trace = cls(objective, len(x), copy_outputs=objective.writes_in_place)
            if trace._run(weights, x, y):
                return trace
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
        trace = cls(objective, len(x), copy_inputs=True, copy_outputs=True)
        trace._run(weights, x, y)
        return trace

    def _run(self, weights: Weights, x: Tensor, y: Tensor) -> bool:
        """The forward pass; False if a traced tensor was written to afterwards."""
        objective, self.device = self.objective, x.device
        trained = {name: weights[name] for name in objective.names}
        self._hooks = hooks = ForwardHooks(
            trained, self.num_records, objective.layout.operations, self.use, self.copies
        )
        self._versions: list[tuple[Tensor, int]] = []
        layers = [Call(name, module, names) for name, (module, names) in objective.owners.items() if rule_for(module)]
        with torch.enable_grad(), hooks.on(layers):
            outputs = objective.outputs(weights, x)
            copies = {name: self.copies(name, weights[name]) for name in objective.likelihood_names}
            self.losses = objective.losses(outputs, y, copies)
        self.uncovered |= hooks.uncovered
        self.selects_rows, self.operations = hooks.selects_rows, tuple(hooks.operations)
        is_as_traced = all(writes_to(values) == version for values, version in self._versions)
        del self._hooks, self._versions
        return is_as_traced

    def copies(self, name: str, values: Tensor) -> Tensor:
        """A weight with one copy for each record, so that its gradient comes out per record."""
        with without_torch_function():
            leaf = values.detach().expand(self.num_records, *values.shape).requires_grad_()
        return self._leaf(leaf, lambda gradient: self._add(name, Dense(wide(gradient))))

    def use(self, call: Call, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Trace one call; the model goes on with what is returned."""
        with without_torch_function():
            inputs = tuple(values.detach().clone() if self.copy_inputs else values.detach() for values in inputs)
            self._versions += [(values, writes_to(values)) for values in inputs]
            use = Use(call, inputs, output.shape, self.objective.layout.layers.get(call.name, FIRST))
            self.uses.append(use)
            # No tensor may own this trace, whose losses own the tensor: such a cycle is never let go.
            receive = partial(type(self).receive, weakref.proxy(self), use)
            if use.layout.dimension is None:
                leaf = output.detach().expand(self.num_records, *output.shape).requires_grad_()
                self._hooks.share(output, self._leaf(leaf, receive), call.weights.values())
                return output
            if any(use.layout.records_first(values, self.num_records) is None for values in (*inputs, output)):
                self.uncovered.update(call.weights.values())
            if output.requires_grad:
                output.register_hook(receive)
                return output
            self._leaf(output.requires_grad_(), receive)
            return output.clone() if self.copy_outputs else output

    def _prepare(self) -> None:
        """In a capture: prepare the rules of small layers beside the start of the backward pass."""
        with beside() as self._preparing, torch.no_grad():
            for use in reversed(self.uses) if self._preparing is not None else ():
                rule = rule_for(use.call.module)
                if rule and rule.prepare and use.layout == FIRST and use.inputs[0].numel() < SMALL:
                    use.prepared = rule.prepare(use.call.module, use.inputs[0], use.output_shape)

    def leaves(self) -> list[Tensor]:
        """The tensors whose gradients a backward pass must return; it hands the others to `receive` on its way."""
        self._prepare()
        leaves, self._leaves = self._leaves, []
        return leaves

    def received(self, gradients: Sequence[Tensor | None]) -> Iterator[tuple[Callable[[Tensor], None], Tensor]]:
        """The gradients of the leaves, each with the function that takes it; this ends the backward pass."""
        receivers, self._receivers = self._receivers, []
        for receive, gradient in zip(receivers, gradients, strict=True):
            if gradient is not None:
                yield receive, gradient
        self._join_streams()

    def receive(self, use: Use, gradient: Tensor) -> None:
        """Compute the gradients of a layer's weights from the gradient of its output.

        Products that are written out may be as coarse as the model's own: their norms are those of the very numbers.
        """
        call, rule = use.call, rule_for(use.call.module)
        inputs, use.inputs = use.inputs, ()
        views = [use.layout.records_first(values, self.num_records) for values in inputs]
        views.append(gradient if use.layout.dimension is None else use.layout.records_first(gradient, self.num_records))
        tensors = [values for values in views if values is not None]
        assert rule is not None
        assert len(tensors) == len(views)
        is_used_again = any(name in self.gradients for name in call.weights.values())
        if is_used_again:  # its gradient is added to one that another stream computed
            self._join_streams()
        is_beside = not is_used_again and sum(values.numel() for values in tensors) <= SMALL
        prepared = [use.prepared] if is_beside and use.prepared is not None else []
        with beside() if is_beside else nullcontext() as stream, torch.no_grad(), without_autocast(self.device):
            if prepared:
                join(self._preparing)
            names = self._deferred(call, tensors[0], tensors[-1]) if rule.gradients is linear_rule else call.weights
            gradients = rule.gradients(call.module, *map(wide, tensors), names, *prepared) if names else {}
            if gradients.keys() != names.keys():
                raise NotCovered(f"the rule of {type(call.module).__name__} left out {names.keys() - gradients.keys()}")
            for parameter, values in gradients.items():
                self._add(names[parameter], values)
        if is_beside:
            self._streams.append((stream, tensors))  # whose memory must not be used again before the stream is done

    def _join_streams(self) -> None:
        join(self._preparing, *(stream for stream, _ in self._streams))
        self._streams.clear()

    def _deferred(self, call: Call, a: Tensor, g: Tensor) -> dict[str, str]:
        """The parameters that are left to the rule; a large linear layer's weight is measured now and summed later."""
        names, weight = dict(call.weights), call.module.weight
        assert isinstance(weight, Tensor)
        if "weight" in names and Deferred.keeps_less(a, g, weight.shape):
            with full_precision(self.device):
                self._add(names.pop("weight"), Deferred.of(a, g, weight.shape))
        return names

    def _add(self, name: str, values: PerRecordGradient) -> None:
        if name not in self.gradients:
            self.gradients[name] = values
            return
        with torch.no_grad(), without_autocast(self.device):
            self.gradients[name] = combine(self.gradients[name], values)

    def _leaf(self, leaf: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        self._leaves.append(leaf)
        self._receivers.append(receive)
        return leaf
