"""Replicas of a module share its tensors: hooks, modes and swapped weights never reach the user's module.

Running a module on other weights (`torch.func.functional_call`), hooks on its layers and switching its mode change it
for a while. So the library runs replicas: their modules, hooks and attributes are copies, their tensors are the same.

    >>> from torch import nn
    >>> model = nn.Linear(3, 2)
    >>> other = replica(model)
    >>> other is model, other.weight is model.weight
    (False, True)
"""

import copy
import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from dpbnn._internals import MODULE_PARTS
from dpbnn.errors import DpbnnError

__all__ = ["REFERRING", "Pool", "globals_of", "inside", "replica", "state_of", "structure_of"]

Item = TypeVar("Item")
COLLECTIONS = (list, tuple, set, frozenset, deque)
REFERRING = (dict, *COLLECTIONS, FunctionType, MethodType, partial, CellType, weakref.ref)
"""The types besides modules that `inside` looks into."""
DEPTH = 4
"""How deep attributes are compared."""


def replica(model: nn.Module) -> nn.Module:
    """A copy of the model's modules on the same tensors.

    Functions in the modules, such as hooks or a replaced forward, refer to the replica in place of the model.

    Raises:
        DpbnnError: the model cannot be copied, or the copy would still refer to the model.

    Guarantees:
        Parameters, buffers and other tensors are shared.
        Nothing that happens to the replica's modules happens to the model's.
    """
    copies: dict[int, Any] = {id(values): values for values in _tensors(model)}
    originals = set(map(id, model.modules()))
    try:
        copied = copy.deepcopy(model, copies)
        for module in copied.modules():
            vars(module).update({name: _redirected(value, originals, copies) for name, value in vars(module).items()})
    except Exception as error:  # a user's code may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DpbnnError(
            f"The model must be one that copy.deepcopy can copy, since every run works on a copy of its modules; "
            f"{type(model).__name__} cannot be copied: {reason}. Remove what cannot be copied from its attributes, or "
            "define __deepcopy__."
        ) from error
    name = _path_to(originals, copied.named_modules())
    if name is not None:  # that attribute would use the model's weights, not those that the replica runs on
        raise DpbnnError(
            f"The model keeps something in '{name}' that leads to the model itself, where no copy can follow; make it "
            "a method, or let it take the module as an argument."
        )
    return copied


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return (value for _, value in _reached([("", model)]) if isinstance(value, Tensor))


def _redirected(value: Any, originals: set[int], copies: dict[int, Any]) -> Any:
    """The value; a function that refers to the model is made again and refers to the replica."""
    if isinstance(value, dict) and value and all(isinstance(inner, FunctionType) for inner in value.values()):
        return type(value)((key, _redirected(inner, originals, copies)) for key, inner in value.items())
    if not isinstance(value, FunctionType) or _path_to(originals, [("", value)]) is None:
        return value
    names = {name: copies.get(id(held), held) for name, held in globals_of(value) if isinstance(held, nn.Module)}
    cells = [
        cell if _path_to(originals, [("", cell)]) is None else CellType(copy.deepcopy(cell.cell_contents, copies))
        for cell in value.__closure__ or ()
    ]
    defaults = copy.deepcopy(value.__defaults__, copies)
    function = FunctionType(value.__code__, value.__globals__ | names, value.__name__, defaults, tuple(cells))
    function.__kwdefaults__ = copy.deepcopy(value.__kwdefaults__, copies)
    return function


def _path_to(targets: set[int], starts: Iterable[tuple[str, object]]) -> str | None:
    """The name of an attribute from which a target can be reached; None if there is none."""
    return next((name for name, value in _reached(starts) if id(value) in targets), None)


def _reached(starts: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """All objects that can be reached from these, each once with the name of an attribute that leads there."""
    seen: set[int] = set()
    waiting = deque(starts)
    while waiting:
        name, value = waiting.popleft()
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
            waiting.extend((f"{name}.{part}".strip("."), inner) for part, inner in inside(value))


def inside(value: object) -> Iterator[tuple[str, object]]:
    """The objects that a value refers to; those of a module have names. Of a function's globals, modules alone."""
    if isinstance(value, nn.Module):
        yield from vars(value).items()
        return
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, COLLECTIONS):
        inner = value
    elif isinstance(value, MethodType):
        inner = value.__self__, value.__func__
    elif isinstance(value, partial):
        inner = value.func, value.args, value.keywords
    elif isinstance(value, FunctionType):
        modules = (held for _, held in globals_of(value) if isinstance(held, nn.Module))
        inner = value.__defaults__, value.__kwdefaults__, value.__closure__, *modules
    elif isinstance(value, weakref.ref):
        inner = (value(),)
    elif isinstance(value, CellType):
        with suppress(ValueError):  # an empty one
            inner = (value.cell_contents,)
    yield from (("", part) for part in inner)


def globals_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The globals used by a function and by the functions inside it."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)


class _Identity:
    """Equal for the same living object alone; an `id` may be given to another object later."""

    def __init__(self, value: object) -> None:
        self._number = id(value)
        self._get: Callable[[], object]
        try:
            self._get = weakref.ref(value)
        except TypeError:  # no weak reference: the object lives as long as this does
            self._get = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._get() is not None and self._get() is other._get()

    def __hash__(self) -> int:
        return self._number


def structure_of(model: nn.Module) -> Hashable:
    """A key that changes with a model's modules, attributes and tensors, but not with what the tensors hold."""
    modules = tuple((name, *_key_of_module(module)) for name, module in model.named_modules())
    parameters = tuple((_Identity(p), p.requires_grad, p.shape, p.dtype) for p in model.parameters())
    return modules, parameters, tuple(map(_Identity, model.buffers()))


def state_of(model: nn.Module, *others: object) -> Hashable:
    """A key of everything that a model's outputs depend on except its trained weights, and of further objects."""
    fixed = (values for values in _tensors(model) if not (isinstance(values, nn.Parameter) and values.requires_grad))
    keys = tuple((_key_of_class(type(other)), _key_of(other, DEPTH)) for other in others)
    return structure_of(model), tuple(map(_digest, fixed)), keys


def _digest(values: Tensor) -> bytes:
    plain = values.detach().cpu().contiguous()
    return hashlib.blake2b(plain.reshape(-1).view(torch.uint8).numpy().data).digest()


def _key_of_module(module: nn.Module) -> tuple[type, Hashable, Hashable]:
    """The attributes on which a module's forward may depend, except parameters, buffers and modules."""
    values = [(name, value) for name, value in vars(module).items() if name not in MODULE_PARTS]
    return type(module), _key_of_class(type(module)), tuple((name, _key_of(value, DEPTH)) for name, value in values)


def _key_of_class(kind: type) -> Hashable:
    """The attributes of a user's class and of its bases."""
    kinds = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("builtins", "torch", "dpbnn")]
    return tuple(
        (_Identity(base), name, _key_of(value, DEPTH))
        for base in kinds
        for name, value in vars(base).items()
        if not (name.startswith("__") and name.endswith("__") and name != "__call__")
    )


def _key_of(value: object, depth: int) -> Hashable:
    """Plain values as they are, collections, functions and objects by their contents, everything else by identity."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), value
    if depth == 0 or isinstance(value, (Tensor, nn.Module, type)):
        return _Identity(value)
    if isinstance(value, dict):
        return tuple((_key_of(key, 0), _key_of(inner, depth - 1)) for key, inner in value.items())
    if isinstance(value, (*COLLECTIONS, FunctionType, CellType)):
        kind = _Identity(value) if isinstance(value, FunctionType) else type(value)
        return kind, tuple(_key_of(inner, depth - 1) for _, inner in inside(value))
    if not callable(value) and hasattr(value, "__dict__"):
        return type(value), _key_of(vars(value), depth - 1)
    return _Identity(value)


class Pool(Generic[Item]):
    """Costly objects. Each serves one thread at a time; all are made again when `key()` changes."""

    def __init__(self, make: Callable[[], Item], key: Callable[[], Any]) -> None:
        self._make, self._key = make, key
        self._spare: tuple[Any, list[Item]] = (None, [])

    @contextmanager
    def lent(self) -> Iterator[Item]:
        """An object that no other thread gets meanwhile."""
        key = self._key()
        known, spare = self._spare
        if known != key:
            spare = []
            self._spare = key, spare
        try:
            item = spare.pop()
        except IndexError:
            item = self._make()
        yield item
        spare.append(item)  # unless something went wrong with it
