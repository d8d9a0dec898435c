"""What a call must leave as it was: the model, the records, and everything that belongs to the whole process."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Picture = dict[str, Any]
HELD_APART = ("_parameters", "_buffers", "_modules")
"""Of a module's own attributes: they are looked at by themselves."""


@contextmanager
def watched_for_changes(model: nn.Module | None, *records: Tensor) -> Iterator[list[str]]:
    """What has changed in the meantime, filled in at the end, also where an exception ends it."""
    changes: list[str] = []
    before = picture(model, *records)
    try:
        yield changes
    finally:
        changes += differences(before, picture(model, *records))


def picture(model: nn.Module | None, *records: Tensor) -> Picture:
    """Everything in plain values that can be compared later."""
    found = _of_process() | {f"records {index}": _bits(values) for index, values in enumerate(records)}
    return found if model is None else found | _of_model(model)


def differences(before: Picture, after: Picture) -> list[str]:
    """The names of what is not as it was."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _of_process() -> Picture:
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - whoever still uses it must find it as it was
    return {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's generator": repr(legacy),
        "Python's generator": random.getstate(),
        "precision of products": torch.get_float32_matmul_precision(),
        "TF32": torch.backends.cudnn.allow_tf32,
        "default type": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "gradients are on": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads of torch": torch.get_num_threads(),
        "fast path of attention": torch.backends.mha.get_fastpath_enabled(),
        "filters of warnings": [str(own) for own in warnings.filters],
    }


def _of_model(model: nn.Module) -> Picture:
    found: Picture = {}
    for name, module in model.named_modules():
        where = f"module '{name}'"
        for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
            for own, values in tensors.items():
                found[f"{kind} '{own}' of {where}"] = None if values is None else _tensor(values)
        found[f"parts of {where}"] = [(own, id(part)) for own, part in module._modules.items()]
        for own, value in vars(module).items():
            if own not in HELD_APART:
                found[f"attribute '{own}' of {where}"] = _plain(value)
    return found


def _tensor(values: Tensor) -> tuple[Any, ...]:
    """The very same object, with the same numbers in the same place."""
    gradient = None if values.grad is None else _bits(values.grad)
    return id(values), type(values), values.data_ptr(), values.requires_grad, gradient, _bits(values)


def _plain(value: Any) -> Any:
    """Hooks and other collections by what they hold."""
    if isinstance(value, dict):
        return {key: id(own) for key, own in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else (id(value), repr(value))


def _bits(values: Tensor) -> bytes:
    return values.detach().contiguous().numpy().tobytes()
