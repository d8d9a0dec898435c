"""The private records, in memory or behind a map-style `Dataset`, handed out by Poisson sampling alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from dpbnn.data.arrays import Batch, as_array, as_tensor
from dpbnn.data.dataset import ROWS_AT_A_TIME, DatasetRecords
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.sampling import PoissonSampler

__all__ = ["Batch", "DatasetRecords", "InMemoryRecords", "Records", "ResidentRecords", "as_records", "brought_to"]


class Records(Protocol):
    """Private records, of any kind."""

    @property
    def empty(self) -> Batch:
        """A batch of no records, in the right shapes and types."""
        ...

    def __len__(self) -> int: ...

    def batches(self, sampler: PoissonSampler, first_step: int, end: int, workers: int) -> Iterator[Batch]:
        """One batch for each step."""
        ...

    def all(self) -> Iterator[Batch]:
        """All records in order, some at a time."""
        ...


@dataclass(eq=False)
class InMemoryRecords:
    """Records that lie in two tensors."""

    x: Tensor
    y: Tensor

    @property
    def empty(self) -> Batch:
        return self.x[:0], self.y[:0]

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, sampler: PoissonSampler, first_step: int, end: int, workers: int) -> Iterator[Batch]:
        for step in range(first_step, end):
            chosen = torch.from_numpy(sampler.batch(step)).to(self.x.device)
            yield self.x.index_select(0, chosen), self.y.index_select(0, chosen)

    def all(self) -> Iterator[Batch]:
        yield from zip(self.x.split(ROWS_AT_A_TIME), self.y.split(ROWS_AT_A_TIME), strict=True)


@dataclass(eq=False)
class ResidentRecords(InMemoryRecords):
    """Two tensors on the device that trains; `padded` has them with a row of zeros behind the last record."""

    padded: Batch

    @staticmethod
    def of(records: InMemoryRecords, device: torch.device) -> "ResidentRecords":
        """A copy on the device."""
        padded = []
        for values in (records.x, records.y):
            place = torch.zeros(len(values) + 1, *values.shape[1:], dtype=values.dtype, device=device)
            place[:-1].copy_(values)
            padded.append(place)
        x, y = padded
        return ResidentRecords(x[:-1], y[:-1], (x, y))


def brought_to(device: torch.device, records: Records, is_asked: bool | None) -> Records:
    """The records on a CUDA device: if that is asked for, or if they take less than half of its free memory."""
    if device.type != "cuda" or not isinstance(records, InMemoryRecords) or is_asked is False:
        return records
    if isinstance(records, ResidentRecords) and records.x.device == device:
        return records
    size, (free, _) = records.x.nbytes + records.y.nbytes, torch.cuda.mem_get_info(device)
    return ResidentRecords.of(records, device) if is_asked or 2 * size < free else records


def as_records(x: Any, y: Any, dtype: torch.dtype) -> Records:
    """Tensors, arrays or a map-style dataset as records; floating-point inputs take the model's type."""
    if isinstance(x, ResidentRecords):
        return x if x.x.dtype == dtype or not x.x.is_floating_point() else as_records(x.x, x.y, dtype)
    if isinstance(x, (DataLoader, IterableDataset, Sampler)):
        raise DpbnnError(
            f"X must be a tensor, an array or a map-style Dataset, got {type(x).__name__}; batches are drawn here, as "
            "the plan accounts for them, so pass the data itself."
        )
    x = as_array(x)
    if isinstance(x, (Tensor, np.ndarray)):
        if y is None:
            raise DpbnnError("y must be given with X: one target per record, got None.")
        inputs, targets = as_tensor("X", x, dtype), as_tensor("y", y, dtype)
        if len(inputs) != len(targets):
            raise DpbnnError(
                "X and y must have one row per record, got different numbers of rows; pass one target for each input."
            )
        return InMemoryRecords(inputs, targets)
    if not (hasattr(x, "__getitem__") and hasattr(x, "__len__")) or isinstance(x, (dict, str)):
        raise DpbnnError(f"X must be a tensor, a NumPy array or a map-style Dataset, got {type(x).__name__}.")
    if y is not None:
        raise DpbnnError("y must be None when X is a Dataset, whose items are (x, y) pairs.")
    return DatasetRecords.of(x, dtype)
