"""Arrays, lists and data frames as tensors whose first dimension is the record."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpbnn.errors import DpbnnError

__all__ = ["Batch", "as_array", "as_tensor"]

Batch = tuple[Tensor, Tensor]
"""Inputs and targets of some records."""


def as_tensor(name: str, values: Any, dtype: torch.dtype) -> Tensor:
    """A tensor with records first: floating-point numbers in `dtype`, or for targets in float32 if that is wider."""
    values = as_array(values)
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise DpbnnError(
            f"{name} must hold numbers, got {getattr(values, 'dtype', type(values).__name__)}; text becomes numbers "
            "by a public list of its values, as [classes.index(v) for v in column]."
        ) from error
    if tensor.dim() == 0 or tensor.is_complex():
        raise DpbnnError(f"{name} must have one row per record, got {tensor.dtype} in {tensor.dim()} dimensions.")
    if tensor.is_floating_point():
        wide = dtype if name == "X" or dtype == torch.float64 else torch.float32
        return tensor.detach().to(wide)
    return tensor.detach() if name == "X" else tensor.detach().long()


def as_array(values: Any) -> Any:
    """Data frames, lists and read-only arrays as writable arrays; everything else as it is."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, (list, tuple)):
        try:
            values = np.asarray(values)
        except ValueError:  # its text says how many rows there are
            raise DpbnnError(f"A {type(values).__name__} must hold rows of one length, got several lengths.") from None
    return values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values
