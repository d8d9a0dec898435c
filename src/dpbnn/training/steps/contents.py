"""What a method's state holds, however deep: a CUDA graph reads and writes the very tensors that it was captured with.

>>> import torch
>>> state = {"velocity": [torch.zeros(2)], "count": 1}
>>> before = Contents(state)
>>> state["velocity"][0] = state["velocity"][0] + 1
>>> before == Contents(state)
False
>>> before.put_back()
>>> before == Contents(state)
True
"""

from collections.abc import Hashable, Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Contents"]

Path = tuple[Hashable, ...]


class Contents:
    """Where the tensors in an object lie, its plain values, and what its dictionaries, lists and attributes hold."""

    def __init__(self, held: Any) -> None:
        self.tensors: dict[Path, Tensor] = {}
        self.plain: dict[Path, Hashable] = {}
        self._attributes: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        waiting: list[tuple[Path, Any]] = [((), held)]
        seen: set[int] = set()
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, Tensor):
                self.tensors[path] = value
            elif isinstance(value, (bool, int, float, str)):
                self.plain[path] = value
            elif id(value) not in seen and not isinstance(value, (type, ModuleType)):
                seen.add(id(value))
                waiting += [((*path, key if isinstance(key, (int, str)) else id(key)), v) for key, v in _inside(value)]
                self._keep(value)

    def __eq__(self, other: object) -> bool:
        """Whether the same tensors lie in the same places, and plain values are equal."""
        return isinstance(other, Contents) and self.plain == other.plain and self._places == other._places

    def still_in(self, other: "Contents") -> bool:
        """Whether the other has all of it; it may have more."""
        return self.plain.items() <= other.plain.items() and self._places.items() <= other._places.items()

    def shares_memory_with(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of the tensors lies in the memory of one of these."""
        own = {values.untyped_storage().data_ptr() for values in self.tensors.values()}
        return any(values.untyped_storage().data_ptr() in own for values in tensors)

    def put_back(self) -> None:
        """Let dictionaries, lists and attributes hold what they held; what tensors hold stays as it is."""
        for attributes, kept in self._attributes:
            attributes.clear()
            attributes.update(kept)
        for place, items in self._lists:
            place[:] = items

    @property
    def _places(self) -> dict[Path, tuple[int, torch.Size]]:
        return {path: (values.data_ptr(), values.shape) for path, values in self.tensors.items()}

    def _keep(self, value: Any) -> None:
        attributes = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._attributes.append((attributes, dict(attributes)))
        if isinstance(value, list):
            self._lists.append((value, list(value)))


def _inside(value: Any) -> Iterable[tuple[Any, Any]]:
    """What an object holds by name. Of an optimizer its state alone: the rest changes without any effect on a step."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, Optimizer):
        return [("state", value.state)]
    return vars(value).items() if hasattr(value, "__dict__") else ()
