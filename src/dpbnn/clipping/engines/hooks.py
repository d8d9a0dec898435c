"""Sees every operation of a forward pass: which weights it uses, and how it combines them with the records.

A layer with a rule uses its weights, and so does a call of `F.linear` on a whole weight (in attention modules). Any
other weight, and every tensor computed from weights alone (a "shared" tensor), gets one copy for each record, by vmap.
The copies replace a shared tensor where it is expanded to the records, added to them or multiplied with them. Weights
with any other use are uncovered: another engine must take the model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from dpbnn._internals import tree_flatten, tree_leaves, tree_unflatten, watched_inside, without_torch_function
from dpbnn.clipping.engines.row_selection import selects_rows

__all__ = ["Call", "ForwardHooks"]

PROPERTIES = {"device", "dtype", "is_cuda", "layout", "ndim", "requires_grad", "shape"}
EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}
ARITHMETIC = {
    prefix.format(name) for name in ("add", "sub", "mul", "truediv") for prefix in ("__{}__", "__r{}__", "__i{}__")
} | {"add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_"}
LARGEST_SHARED = 2**20
"""A weight with more numbers is not copied for every record."""


@dataclass(frozen=True)
class Call:
    """A layer with a rule, or a stand-in for one; `weights` names the weight behind each parameter."""

    name: str
    module: nn.Module
    weights: Mapping[str, str]


@dataclass(frozen=True)
class Shared:
    """A tensor computed from `weights` alone, and one copy of it for each record."""

    plain: Tensor
    copies: Tensor
    weights: frozenset[str]

    def aligned(self, rank: int) -> Tensor | None:
        """The copies in a shape that broadcasts against `rank` dimensions with the records first."""
        shape = self.plain.shape
        if len(shape) == rank and shape[0] == 1:
            shape = shape[1:]
        return self.copies.reshape(-1, *[1] * (rank - 1 - len(shape)), *shape) if len(shape) < rank else None


class ForwardHooks(TorchFunctionMode):
    """The hooks of one forward pass on `weights`.

    Args:
        weights: the trained ones, by name.
        num_records: in the batch.
        expected: the operations on shared tensors, in order; None in the trial that finds them.
        use: is called with each call of a ruled layer, and returns the output that the model goes on with.
        copies: expands a weight to one copy for each record.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        num_records: int,
        expected: tuple[str, ...] | None,
        use: Callable[[Call, tuple[Tensor, ...], Tensor], Tensor],
        copies: Callable[[str, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.num_records, self.expected, self.use, self.copies = num_records, expected, use, copies
        self.operations: list[str] = []
        self.uncovered: set[str] = set()
        self.selects_rows = False
        self._names = {id(values): name for name, values in weights.items()}
        self._shared: dict[int, Shared] = {}
        self._is_inside_layer = False

    @contextmanager
    def on(self, layers: Iterable[Call]) -> Iterator[None]:
        """Put hooks on the ruled layers and take them off again, whatever happens."""
        handles = []
        try:
            for call in layers:
                handles.append(call.module.register_forward_pre_hook(self._enter, with_kwargs=True))
                leave = partial(self._leave, call)
                handles.append(call.module.register_forward_hook(leave, prepend=True, with_kwargs=True))
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def share(self, plain: Tensor, copies: Tensor, weights: Iterable[str]) -> None:
        """From here on the copies replace `plain` where it is combined with records."""
        self._shared[id(plain)] = Shared(plain, copies, frozenset(weights))

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A ruled layer starts: its rule knows what it does, but not that a weight is among its inputs."""
        self.uncovered |= self._weights_in((*args, *kwargs.values()))
        self._is_inside_layer = True

    def _leave(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """A ruled layer ends. Its rule takes positional tensors alone; other calls are uncovered."""
        self._is_inside_layer = False
        with without_torch_function():
            if kwargs:
                arguments = signature(module.forward).bind(*args, **kwargs)
                args, kwargs = arguments.args, arguments.kwargs
            if kwargs or not all(isinstance(values, Tensor) for values in (*args, output)):
                self.uncovered.update(call.weights.values())
                return output
            return self.use(call, args, output)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.expected is None and not self._is_inside_layer:  # a trial
            self.selects_rows |= selects_rows(func, args, kwargs)
        if self._is_inside_layer or _only_asks_for_a_property(func):
            return func(*args, **kwargs)
        if not self._weights_in((*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return watched_inside(func)(*args, **kwargs)
        if func is F.linear:
            return self._linear(*args, **kwargs)
        return self._operation(func, args, kwargs)

    def _weights_in(self, values: Iterable[Any]) -> set[str]:
        """The weights among these values, and those that shared tensors among them were computed from."""
        names: set[str] = set()
        for value in values:
            if isinstance(value, (tuple, list)):
                names |= self._weights_in(value)
            elif id(value) in self._names:
                names.add(self._names[id(value)])
            elif id(value) in self._shared:
                names |= self._shared[id(value)].weights
        return names

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear layer without a module, if its weight is a trained one."""
        output = F.linear(input, weight, bias)
        given = {"weight": weight, "bias": bias}
        names = {key: self._names[id(values)] for key, values in given.items() if id(values) in self._names}
        if "weight" in names and (bias is None or "bias" in names or id(bias) not in self._shared):
            self.uncovered |= self._weights_in([input])
            return self.use(Call(names["weight"], _stand_in(*weight.shape), names), (input,), output)
        self.uncovered |= self._weights_in([input, weight, bias])
        return output

    def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        found = {index: self._as_shared(leaf) for index, leaf in enumerate(leaves) if self._weights_in([leaf])}
        shared = {index: one for index, one in found.items() if one is not None}
        others = [leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and index not in found]
        result = None
        if len(shared) == len(found) and "out" not in kwargs:
            if func.__name__ in EXPANSIONS:
                result = self._expansion(func, leaves, form, shared)
            elif not others:
                result = self._on_shared_alone(func, leaves, form, shared)
            elif func.__name__ in ARITHMETIC:
                result = self._with_records(func, leaves, form, shared, others)
        if result is None:
            self.uncovered |= self._weights_in(leaves)
            return func(*args, **kwargs)
        return result

    def _as_shared(self, value: Tensor) -> Shared | None:
        if id(value) not in self._shared:
            name = self._names[id(value)]
            if value.numel() > LARGEST_SHARED:
                return None
            self.share(value, self.copies(name, value), [name])
        return self._shared[id(value)]

    def _is_expected(self, operation: str) -> bool:
        """Whether the trial came to the same operation here; a trial expects any."""
        place = len(self.operations)
        return self.expected is None or self.expected[place : place + 1] == (operation,)

    def _note(self, operation: str) -> bool:
        """Note an operation, and say whether it was expected."""
        is_expected = self._is_expected(operation)
        self.operations.append(operation)
        return is_expected

    def _expansion(self, func: Any, leaves: list[Any], form: Any, shared: dict[int, Shared]) -> Any:
        """A shared tensor is repeated: for each record if its size says so in the trial, and later as in the trial."""
        if 0 not in shared:
            return None
        args, kwargs = tree_unflatten(leaves, form)
        plain, shape = shared[0].plain, func(*args, **kwargs).shape
        operation = f"{func.__name__} to records"
        if self.expected is None:
            to_records = shape[:1] == (self.num_records,) and (len(shape) > plain.dim() or len(plain) == 1)
        else:
            to_records = self._is_expected(operation)
        if not to_records:
            return self._on_shared_alone(func, leaves, form, shared)
        copies = shared[0].aligned(len(shape))
        if copies is None or shape[0] != self.num_records or not self._note(operation):
            return None
        if func.__name__ == "repeat":
            return copies.repeat(1, *(whole // part for whole, part in zip(shape[1:], copies.shape[1:], strict=True)))
        return copies.expand(shape)

    def _on_shared_alone(self, func: Any, leaves: list[Any], form: Any, shared: dict[int, Shared]) -> Any:
        """An operation on shared tensors alone is done twice: on the tensors, and on all their copies."""
        name = func.__name__
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__":
            return None
        args, kwargs = tree_unflatten(leaves, form)
        result = func(*args, **kwargs)
        outputs = [values for values in tree_leaves(result) if isinstance(values, Tensor)]
        if not outputs:
            return result

        def on_one(*copies: Tensor) -> list[Tensor]:
            filled = leaves.copy()
            for index, copy in zip(shared, copies, strict=True):
                filled[index] = copy
            args, kwargs = tree_unflatten(filled, form)
            return [values for values in tree_leaves(func(*args, **kwargs)) if isinstance(values, Tensor)]

        try:
            output_copies = vmap(on_one)(*(one.copies for one in shared.values()))
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # not for vmap: left to another engine
            return None
        weights = frozenset().union(*(one.weights for one in shared.values()))
        for plain, copies in zip(outputs, output_copies, strict=True):
            self.share(plain, copies, weights)
        return result if self._note(f"{name} shared") else None

    def _with_records(
        self, func: Any, leaves: list[Any], form: Any, shared: dict[int, Shared], others: list[Tensor]
    ) -> Tensor | None:
        """Arithmetic with a tensor that holds the records first."""
        rank = max(values.dim() for values in (*others, *(one.plain for one in shared.values())))
        copies = {index: one.aligned(rank) for index, one in shared.items()}
        holds_records = any(values.dim() == rank > 0 and len(values) == self.num_records for values in others)
        if None in copies.values() or not holds_records or not self._note(f"{func.__name__} with records"):
            return None
        args, kwargs = tree_unflatten([copies.get(index, leaf) for index, leaf in enumerate(leaves)], form)
        return func(*args, **kwargs)


def _only_asks_for_a_property(func: Any) -> bool:
    return func.__name__ == "__get__" and func.__self__.__name__ in PROPERTIES


@cache
def _stand_in(out_features: int, in_features: int) -> nn.Linear:
    return nn.Linear(in_features, out_features, bias=False, device="meta")
