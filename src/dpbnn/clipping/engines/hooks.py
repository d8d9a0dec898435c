"""Watches every operation of a forward pass: which weights it uses, where, and how they meet the records.

A layer with a rule uses its weights, and so does a call of `F.linear` on a whole weight (in attention modules). Any
other weight, and all tensors made of weights alone ("shared" tensors), get one copy for each record, by vmap. These
copies take part wherever a shared tensor is broadcast to the records or meets them in arithmetic. All other uses are
strays: another engine must take the model.
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
from dpbnn.clipping.engines.row_selection import picks_rows

__all__ = ["Call", "Watch"]

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
    """A tensor made of `weights` alone, and its copies: one for each record."""

    plain: Tensor
    copies: Tensor
    weights: frozenset[str]

    def beside(self, rank: int) -> Tensor | None:
        """The copies as they broadcast against `rank` dimensions with the records first."""
        shape = self.plain.shape
        if len(shape) == rank and shape[0] == 1:
            shape = shape[1:]
        return self.copies.reshape(-1, *[1] * (rank - 1 - len(shape)), *shape) if len(shape) < rank else None


class Watch(TorchFunctionMode):
    """One forward pass on `weights`.

    `use` is called with each call of a ruled layer and returns the output that the model goes on with. `leaf` makes a
    weight's copies. `strays` are the weights whose use is not accounted for.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        records: int,
        planned: tuple[str, ...] | None,
        use: Callable[[Call, tuple[Tensor, ...], Tensor], Tensor],
        leaf: Callable[[str, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.names = {id(values): name for name, values in weights.items()}
        self.records, self.planned, self.use, self.leaf = records, planned, use, leaf
        self.steps: list[str] = []
        self.strays: set[str] = set()
        self.inside_layer = False
        self.picks_rows = False
        self._shared: dict[int, Shared] = {}

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
        """From here on the copies take the place of `plain` where it meets records."""
        self._shared[id(plain)] = Shared(plain, copies, frozenset(weights))

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A ruled layer starts: weights among its inputs are strays; what it does inside is left to its rule."""
        self._stray((*args, *kwargs.values()))
        self.inside_layer = True

    def _leave(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """A ruled layer ends. Its rule takes tensors by their place alone; other calls are strays."""
        self.inside_layer = False
        with without_torch_function():
            if kwargs:
                arguments = signature(module.forward).bind(*args, **kwargs)
                args, kwargs = arguments.args, arguments.kwargs
            if kwargs or not all(isinstance(values, Tensor) for values in (*args, output)):
                self.strays.update(call.weights.values())
                return output
            return self.use(call, args, output)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.planned is None and not self.inside_layer:  # a trial
            self.picks_rows |= picks_rows(func, args, kwargs)
        if self.inside_layer or not self._mentions((*args, *kwargs.values())) or _only_asks_for_a_property(func):
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return watched_inside(func)(*args, **kwargs)
        if func is F.linear:
            return self._linear(*args, **kwargs)
        return self._operation(func, args, kwargs)

    def _mentions(self, values: Iterable[Any]) -> bool:
        for value in values:
            if isinstance(value, (tuple, list)):
                if self._mentions(value):
                    return True
            elif id(value) in self.names or id(value) in self._shared:
                return True
        return False

    def _stray(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, (tuple, list)):
                self._stray(value)
            elif id(value) in self.names:
                self.strays.add(self.names[id(value)])
            elif id(value) in self._shared:
                self.strays |= self._shared[id(value)].weights

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear layer without a module, if its weight is a trained one."""
        output = F.linear(input, weight, bias)
        given = {"weight": weight, "bias": bias}
        names = {key: self.names[id(values)] for key, values in given.items() if id(values) in self.names}
        if "weight" in names and (bias is None or "bias" in names or id(bias) not in self._shared):
            self._stray([input])
            return self.use(Call(names["weight"], _stand_in(*weight.shape), names), (input,), output)
        self._stray([input, weight, bias])
        return output

    def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        shared = {index: self._as_shared(leaf) for index, leaf in enumerate(leaves) if self._mentions([leaf])}
        others = [leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and index not in shared]
        known = {index: one for index, one in shared.items() if one is not None}
        result = None
        if len(known) == len(shared) and "out" not in kwargs:
            if func.__name__ in EXPANSIONS:
                result = self._expansion(func, leaves, form, known)
            elif not others:
                result = self._still_shared(func, leaves, form, known)
            elif func.__name__ in ARITHMETIC:
                result = self._meeting(func, leaves, form, known, others)
        if result is None:
            self._stray(leaves)
            return func(*args, **kwargs)
        return result

    def _as_shared(self, value: Tensor) -> Shared | None:
        if id(value) not in self._shared:
            name = self.names[id(value)]
            if value.numel() > LARGEST_SHARED:
                return None
            self.share(value, self.leaf(name, value), [name])
        return self._shared[id(value)]

    def _follows(self, step: str) -> bool:
        """Note a step; whether it is the one that the trial took here."""
        self.steps.append(step)
        return self.planned is None or self.planned[len(self.steps) - 1 : len(self.steps)] == (step,)

    def _expansion(self, func: Any, leaves: list[Any], form: Any, shared: dict[int, Shared]) -> Any:
        """A shared tensor is repeated: once for each record if its size says so, later on if it was so in the trial."""
        if 0 not in shared:
            return None
        args, kwargs = tree_unflatten(leaves, form)
        plain, shape = shared[0].plain, func(*args, **kwargs).shape
        step = f"{func.__name__} to records"
        if self.planned is None:
            to_records = shape[:1] == (self.records,) and (len(shape) > plain.dim() or len(plain) == 1)
        else:
            to_records = self.planned[len(self.steps) : len(self.steps) + 1] == (step,)
        if not to_records:
            return self._still_shared(func, leaves, form, shared)
        beside = shared[0].beside(len(shape))
        if beside is None or shape[0] != self.records or not self._follows(step):
            return None
        if func.__name__ == "repeat":
            return beside.repeat(1, *(whole // part for whole, part in zip(shape[1:], beside.shape[1:], strict=True)))
        return beside.expand(shape)

    def _still_shared(self, func: Any, leaves: list[Any], form: Any, shared: dict[int, Shared]) -> Any:
        """An operation on shared tensors alone is done twice: on the tensors, and on all their copies."""
        name = func.__name__
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__":
            return None
        args, kwargs = tree_unflatten(leaves, form)
        result = func(*args, **kwargs)
        made = [values for values in tree_leaves(result) if isinstance(values, Tensor)]
        if not made:
            return result

        def on_one(*copies: Tensor) -> list[Tensor]:
            filled = leaves.copy()
            for index, copy in zip(shared, copies, strict=True):
                filled[index] = copy
            args, kwargs = tree_unflatten(filled, form)
            return [values for values in tree_leaves(func(*args, **kwargs)) if isinstance(values, Tensor)]

        try:
            copies = vmap(on_one)(*(one.copies for one in shared.values()))
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return None
        weights = frozenset().union(*(one.weights for one in shared.values()))
        for plain, lifted in zip(made, copies, strict=True):
            self.share(plain, lifted, weights)
        return result if self._follows(f"{name} shared") else None

    def _meeting(
        self, func: Any, leaves: list[Any], form: Any, shared: dict[int, Shared], others: list[Tensor]
    ) -> Tensor | None:
        """Arithmetic with a tensor that holds the records first."""
        rank = max(values.dim() for values in (*others, *(one.plain for one in shared.values())))
        beside = {index: one.beside(rank) for index, one in shared.items()}
        holds_records = any(values.dim() == rank > 0 and len(values) == self.records for values in others)
        if None in beside.values() or not holds_records or not self._follows(f"{func.__name__} with records"):
            return None
        args, kwargs = tree_unflatten([beside.get(index, leaf) for index, leaf in enumerate(leaves)], form)
        return func(*args, **kwargs)


def _only_asks_for_a_property(func: Any) -> bool:
    return func.__name__ == "__get__" and func.__self__.__name__ in PROPERTIES


@cache
def _stand_in(out_features: int, in_features: int) -> nn.Linear:
    return nn.Linear(in_features, out_features, bias=False, device="meta")
