"""Reading batches from a `Dataset`, whose draws are secret and repeatable.

Guarantees:
    What reading a record draws is a function of the secret key, the step and the record's row.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from dpbnn.data.arrays import Batch, as_tensor
from dpbnn.data.process_generators import generators_of_the_process, restoring_generators
from dpbnn.device.generators import default_generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import Randomness

__all__ = ["BatchReader", "StepRows", "collated"]

StepRows = tuple[int, Sequence[int]]
"""A step and the rows of its batch."""

PLAIN, REDIRECTED, SEEDED = range(3)
"""Degrees of care: none; torch's draws are redirected; NumPy's and Python's are seeded for each record too."""


@dataclass
class BatchReader(Dataset[Batch]):
    """Reads the batch of a step, with as little care of draws as is enough: most data sets draw nothing.

    Each record's draws from torch come from generators that are seeded for it when something is drawn. Where the
    generators of the process show afterwards that something was drawn from them too, the batch is read again, and they
    are seeded for each record. In the user's process they are restored then. A worker process has nothing else that
    draws: there they need no restoring, and reading starts without redirecting torch's draws.
    """

    dataset: "Dataset[Any]"
    empty: Batch
    dtype: torch.dtype
    randomness: Randomness
    in_worker: bool = False
    care: int = PLAIN

    def __getitem__(self, batch: StepRows) -> Batch:
        step, rows = batch
        return collated(self._items(step, rows), self.dtype) if rows else self.empty

    def _items(self, step: int, rows: Sequence[int]) -> list[Any]:
        care = self.care if self.in_worker else REDIRECTED
        with nullcontext() if self.in_worker else restoring_generators():
            while True:
                if self.in_worker:
                    self.randomness.seed_process("workers", step, 0)
                before = self._generators()
                items = self._read(step, rows, care)
                # A CUDA device has a generator whose state is not compared.
                enough = REDIRECTED if torch.cuda.is_initialized() else PLAIN
                if care == SEEDED or (care >= enough and before == self._generators()):
                    return items
                care += 1
                if self.in_worker:
                    self.care = care  # for all later batches too

    def _generators(self) -> Any:
        """The states of what the process shares; torch's generator too, where no other thread can draw from it."""
        of_torch = default_generators(torch.device("cpu")) if self.in_worker else None
        return of_torch, generators_of_the_process()

    def _read(self, step: int, rows: Sequence[int], care: int) -> list[Any]:
        if care == PLAIN:
            return [_item(self.dataset, row) for row in rows]
        seed = self.randomness.seed_process if self.in_worker else self.randomness.seed_process_but_torch
        with drawing_from(self.randomness.reading(step, rows[0])) as generators:
            items = []
            for row in rows:
                generators.reseed(partial(self.randomness.seed_reading, step, row))
                if care == SEEDED:
                    seed("reading", step, row)
                items.append(_item(self.dataset, row))
            return items


def _item(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except DpbnnError:
        raise
    except Exception as error:  # its text or traceback may name the record, and so show that the batch has it
        kind = type(error).__name__
    raise DpbnnError(  # outside of the handler, so that it does not carry the other error along
        f"Every record of a Dataset must be readable, got {kind} from one; [dataset[row] for row in "
        "range(len(dataset))] finds it, unless reading fails in worker processes alone."
    )


def collated(items: Sequence[Any], dtype: torch.dtype) -> Batch:
    """Items of a data set as one batch."""
    if not (isinstance(items[0], (tuple, list)) and len(items[0]) == 2):
        raise DpbnnError(f"A Dataset's items must be (x, y) pairs, got {type(items[0]).__name__}.")
    pair = None
    with suppress(RuntimeError, TypeError, ValueError):  # their texts show the place in the batch, and its size
        pair = default_collate(list(items))
    if pair is None:
        kinds = " and ".join(type(part).__name__ for part in items[0])
        raise DpbnnError(
            "A Dataset's x and y must be tensors, arrays or numbers, each of one shape and type, got what cannot be "
            f"put together: {kinds}."
        )
    x, y = pair
    return as_tensor("X", x, dtype), as_tensor("y", y, dtype)
