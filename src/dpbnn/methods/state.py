"""The fields of a method's state that a checkpoint holds; `init` makes the others again from the same arguments.

>>> import torch
>>> from dataclasses import dataclass
>>> @dataclass
... class State:
...     weights: dict[str, torch.Tensor]
...     count: int
>>> before, after = State({"w": torch.ones(2)}, 7), State({"w": torch.zeros(2)}, 0)
>>> load_state(after, state_dict(before))
>>> after
State(weights={'w': tensor([1., 1.])}, count=7)
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["load_state", "state_dict"]

PLAIN = (bool, int, float, str, bytes, type(None))


def state_dict(state: Any) -> dict[str, Any]:
    """The fields that are plain values, tensors, tensors by name, or objects with a `state_dict`, by name."""
    saved = {}
    for name, value in vars(state).items():
        if isinstance(value, PLAIN) or _is_tensors(value):
            saved[name] = value
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            saved[name] = value.state_dict()
    return saved


def load_state(state: Any, saved: Mapping[str, Any]) -> None:
    """Bring a freshly initialised state to where it was saved; tensors that it has are written in place."""
    for name, value in saved.items():
        present = getattr(state, name)
        if isinstance(present, Tensor):
            present.copy_(value)
        elif _is_tensors(present):
            for key, values in present.items():
                values.copy_(value[key])
        elif isinstance(present, Optimizer):
            _load_optimizer(present, value)
        elif hasattr(present, "load_state_dict"):
            present.load_state_dict(value)
        else:
            setattr(state, name, value)


def _is_tensors(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(inner, Tensor) for inner in value.values())
    return isinstance(value, Tensor)


def _load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Keep `capturable` as it is: the run may go on without the CUDA device on which it was saved."""
    capturable = [group.get("capturable") for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(saved))
    for group, value in zip(optimizer.param_groups, capturable, strict=True):
        if value is not None:
            group["capturable"] = value
