"""A map-style `Dataset` as records, read by worker processes where there are any."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpbnn.data.arrays import Batch
from dpbnn.data.held_generators import holds_generator
from dpbnn.data.process_generators import generators_of_the_process, restoring_generators
from dpbnn.data.reading import BatchReader, StepRows, collated
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

__all__ = ["ROWS_AT_A_TIME", "DatasetRecords"]

ROWS_AT_A_TIME = 4096
LOOKS = 3
"""How often a record is read to see what reading draws, as another thread might draw at the same time."""


@dataclass(eq=False)
class DatasetRecords:
    """A map-style dataset of (x, y) pairs.

    Attributes:
        dataset: the user's data set.
        length: its number of records.
        empty: no records, in the right shapes and types.
        dtype: the type of floating-point inputs.
        draws_outside_torch: whether reading a record draws from NumPy's or Python's generator of the whole process.
        draws_unseen: whether reading draws from a generator that the data set holds, or changes its state.
    """

    dataset: "Dataset[Any]"
    length: int
    empty: Batch
    dtype: torch.dtype
    draws_outside_torch: bool = False
    draws_unseen: bool = False

    @staticmethod
    def of(dataset: Any, dtype: torch.dtype) -> "DatasetRecords":
        """Read the first records to see their shape, and what reading them draws."""
        if len(dataset) == 0:
            raise DpbnnError("A Dataset must hold at least one record, whose shape is looked at, got none.")
        with drawing_from(Generators.seeded(0)), restoring_generators():
            x, y = collated([dataset[0]], dtype)
            draws_outside = all(_moves_generators(dataset) for _ in range(LOOKS))
            if len(dataset) > 1 and _share_memory(dataset[0], dataset[1]):
                raise DpbnnError(
                    "A Dataset must return new values for every record, got one memory for two; return copies."
                )
        draws_unseen = holds_generator(dataset) or (not draws_outside and not _is_repeatable(dataset, dtype))
        return DatasetRecords(dataset, len(dataset), (x[:0], y[:0]), dtype, draws_outside, draws_unseen)

    def __len__(self) -> int:
        return self.length

    def batches(self, sampler: PoissonSampler, first_step: int, end: int, workers: int) -> Iterator[Batch]:
        steps = ((step, sampler.batch(step).tolist()) for step in range(first_step, end))
        yield from self._read(steps, sampler.randomness, workers)

    def all(self) -> Iterator[Batch]:
        every = range(self.length)
        parts = ((0, every[start : start + ROWS_AT_A_TIME]) for start in range(0, self.length, ROWS_AT_A_TIME))
        known = Randomness.from_seed(0)  # the same every time, also where reading draws
        yield from self._read(parts, known, workers=int(self.draws_outside_torch))

    def _read(self, steps: Iterable[StepRows], randomness: Randomness, workers: int) -> Iterator[Batch]:
        reader = BatchReader(self.dataset, self.empty, self.dtype, randomness, in_worker=workers > 0)
        if workers == 0:
            yield from map(reader.__getitem__, steps)
            return
        generator = torch.Generator()
        randomness.seed("workers", 0, 0, generator)  # else the loader would draw from torch's global one
        loaded = DataLoader(reader, batch_size=None, sampler=steps, num_workers=workers, generator=generator)
        try:
            yield from map(tuple, loaded)
            return
        except DpbnnError as error:  # with the worker's traceback in its text
            text = str(error).strip().splitlines()[-1].removeprefix(f"{DpbnnError.__module__}.{DpbnnError.__name__}: ")
        except (RuntimeError, OSError) as error:  # its text may say how many bytes a batch has
            text = (
                f"Worker processes must hand over every batch of a Dataset, got {type(error).__name__}: one was "
                "stopped, or memory, shared memory or open files ran out."
            )
        raise DpbnnError(text)

    def refuse_known_draws(self, workers: int) -> None:
        """Refuse draws that would not be secret: torch's are, and in worker processes NumPy's and Python's are too."""
        if self.draws_unseen:
            raise DpbnnError(
                "A Dataset may draw by torch's functions without a generator, and must otherwise read a record the "
                "same every time; got one that holds a generator, whose draws could not be kept secret, or has state "
                "that reading changes; leave the generator out (np.random will do in worker processes), or the state."
            )
        if workers == 0 and self.draws_outside_torch:
            raise DpbnnError(
                "A Dataset that is read in this process must draw by torch, if it draws, got one that draws from "
                "NumPy's or Python's generator, which anybody may have seeded; draw by torch, or read it in worker "
                "processes: Execution(dataset_workers=1)."
            )


def _share_memory(first: Any, second: Any) -> bool:
    """Whether two records lie in the same memory, so that reading the second has written over the first."""
    pairs = zip(first, second, strict=False) if isinstance(first, (tuple, list)) else ()
    return any(
        (isinstance(one, Tensor) and isinstance(other, Tensor) and 0 != one.data_ptr() == other.data_ptr())
        or (isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.may_share_memory(one, other))
        for one, other in pairs
    )


def _is_repeatable(dataset: Any, dtype: torch.dtype) -> bool:
    """Whether a record is the same every time that it is read from the same state of torch's generators."""
    read = []
    for _ in range(LOOKS):
        with drawing_from(Generators.seeded(0)):
            read.append(collated([dataset[0]], dtype))
    pairs = [pair for other in read[1:] for pair in zip(read[0], other, strict=True)]
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def _moves_generators(dataset: Any) -> bool:
    before = generators_of_the_process()
    dataset[0]
    return before != generators_of_the_process()
