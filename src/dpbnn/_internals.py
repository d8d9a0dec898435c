"""Private parts of torch and NumPy that the package relies on. They stand here alone: a new version breaks one file.

`tests/test_internals.py` tries each, and says which version broke it.
"""

import random
from types import FunctionType
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.nn.modules.dropout import _DropoutNd as AnyDropout
from torch.nn.modules.instancenorm import _InstanceNorm as AnyInstanceNorm
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

__all__ = [
    "MODULE_PARTS",
    "AnyBatchNorm",
    "AnyDropout",
    "AnyInstanceNorm",
    "ThreadMode",
    "arguments_of",
    "children_of",
    "global_generators",
    "in_vmap_or_grad",
    "is_compiled",
    "padding_reversed",
    "storage_key",
    "tree_flatten",
    "tree_leaves",
    "tree_unflatten",
    "watched_inside",
    "without_torch_function",
    "writes_to",
]

MODULE_PARTS = ("_parameters", "_buffers", "_modules")
"""The attributes of a module in which it keeps its parameters, buffers and modules."""

without_torch_function = torch._C.DisableTorchFunction
"""Inside this ``with``, no `TorchFunctionMode` sees the operations of this thread."""


class ThreadMode(TorchDispatchMode):
    """Sees the operations of this thread.

    Torch's way in and out of a mode also writes to globals of the process that its compiler reads, and leaves them
    wrong where modes of several threads overlap. It would load that compiler too, which takes seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Self:
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode()


def watched_inside(function: Any) -> Any:
    """A function of `torch.nn.functional` without its look for modes, so that they see the operations inside it."""
    names = vars(F) | {"has_torch_function": lambda _: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def in_vmap_or_grad() -> bool:
    """Whether `torch.func` transforms what runs now."""
    return torch._C._are_functorch_transforms_active()


def arguments_of(operator: Any) -> list[Any]:
    """The declared arguments of an operator of `torch.ops`: their names and default values."""
    return list(operator._schema.arguments)


def writes_to(values: Tensor) -> int:
    """How often this tensor's numbers were written to in place."""
    return values._version


def storage_key(storage: torch.UntypedStorage) -> int:
    """The same for all tensors that share this memory, as long as it lives."""
    return storage._cdata


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """A module's children by name, empty places and repeated ones included; what is written here replaces them."""
    return module._modules


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` made it."""
    return hasattr(module, "_orig_mod")


def padding_reversed(convolution: Any) -> list[int]:
    """A convolution's padding as `torch.nn.functional.pad` takes it."""
    return convolution._reversed_padding_repeated_twice


def global_generators() -> tuple[object, ...]:
    """The generators behind `torch.rand`, `numpy.random.rand` and `random.random`."""
    of_numpy = np.random.mtrand._rand
    return torch.default_generator, of_numpy, of_numpy._bit_generator, random._inst
