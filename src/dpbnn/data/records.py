"""The private records, in memory or behind a map-style `Dataset`, handed out by Poisson sampling alone.

Guarantees:
    What reading a record draws is a function of the secret key, the step and the record's row.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from dpbnn.data.own_generators import has_generator
from dpbnn.device.generators import Generators, default_generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

__all__ = [
    "Batch",
    "DatasetRecords",
    "InMemoryRecords",
    "Records",
    "ResidentRecords",
    "as_records",
    "as_tensor",
    "brought_to",
    "generators_of_the_process",
]

Batch = tuple[Tensor, Tensor]

DIGEST_ROWS = 4096
PLAIN, REDIRECTED, SEEDED = range(3)
"""How much care a worker takes of draws."""
LOOKS = 3
"""How often a record is read to see what that draws: another thread might draw at the same time."""


class Records(Protocol):
    """Private records that can be sampled."""

    @property
    def empty(self) -> Batch:
        """No records, in the right shapes and types."""
        ...

    def __len__(self) -> int: ...

    def batches(self, sampler: PoissonSampler, first_step: int, end: int, workers: int) -> Iterator[Batch]:
        """One batch for each step."""
        ...

    def all(self) -> Iterator[Batch]:
        """All records in order, some at a time."""
        ...


@dataclass(frozen=True)
class InMemoryRecords:
    """Two tensors."""

    x: Tensor
    y: Tensor

    @property
    def empty(self) -> Batch:  # noqa: D102 - the protocol says it, here and below
        return self.x[:0], self.y[:0]

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, sampler: PoissonSampler, first_step: int, end: int, workers: int) -> Iterator[Batch]:  # noqa: D102
        for step in range(first_step, end):
            chosen = torch.from_numpy(sampler.batch(step)).to(self.x.device)
            yield self.x.index_select(0, chosen), self.y.index_select(0, chosen)

    def all(self) -> Iterator[Batch]:  # noqa: D102
        yield from zip(self.x.split(DIGEST_ROWS), self.y.split(DIGEST_ROWS), strict=True)


@dataclass(frozen=True)
class ResidentRecords(InMemoryRecords):
    """Two tensors on the device that trains, and views of both with a row of zeros behind the last record."""

    padded: Batch

    @staticmethod
    def of(records: InMemoryRecords, device: torch.device) -> "ResidentRecords":
        """Copied to the device."""
        padded = []
        for values in (records.x, records.y):
            place = torch.zeros(len(values) + 1, *values.shape[1:], dtype=values.dtype, device=device)
            place[:-1].copy_(values)
            padded.append(place)
        x, y = padded
        return ResidentRecords(x[:-1], y[:-1], (x, y))


def brought_to(device: torch.device, records: Records, wanted: bool | None) -> Records:
    """The records on a CUDA device, if that is wanted, or they take less than half of what is free there."""
    if device.type != "cuda" or not isinstance(records, InMemoryRecords) or wanted is False:
        return records
    if isinstance(records, ResidentRecords) and records.x.device == device:
        return records
    size, (free, _) = records.x.nbytes + records.y.nbytes, torch.cuda.mem_get_info(device)
    return ResidentRecords.of(records, device) if wanted or 2 * size < free else records


@dataclass(frozen=True)
class DatasetRecords:
    """A map-style dataset of (x, y) pairs, read by worker processes where there are any.

    `draws_outside_torch` says that reading a record draws from NumPy's or Python's generator of the whole process,
    `draws_by_itself` that it draws from a generator of the data set's own.
    """

    dataset: "Dataset[Any]"
    length: int
    empty: Batch
    dtype: torch.dtype
    draws_outside_torch: bool = False
    draws_by_itself: bool = False

    def __len__(self) -> int:
        return self.length

    def batches(self, sampler: PoissonSampler, first_step: int, end: int, workers: int) -> Iterator[Batch]:  # noqa: D102
        steps = zip(range(first_step, end), sampler.batches(first_step, end), strict=True)
        yield from self._read(steps, sampler.randomness, workers)

    def all(self) -> Iterator[Batch]:  # noqa: D102
        every = range(self.length)
        parts = ((0, every[start : start + DIGEST_ROWS]) for start in range(0, self.length, DIGEST_ROWS))
        known = Randomness.from_seed(0)  # the same every time, also where reading draws
        yield from self._read(parts, known, workers=int(self.draws_outside_torch))

    def _read(self, steps: Iterable["_Rows"], randomness: Randomness, workers: int) -> Iterator[Batch]:
        if workers == 0:
            yield from map(_Reading(self, randomness).read, steps)
            return
        generator = torch.Generator()
        randomness.seed("workers", 0, 0, generator)  # else torch's own would be drawn from
        reading = _ReadingAlone(self, randomness)
        loaded = DataLoader(reading, batch_size=None, sampler=steps, num_workers=workers, generator=generator)
        try:
            yield from ((x, y) for x, y in loaded)
            return
        except DpbnnError as error:  # with the worker's traceback in its text
            text = str(error).strip().splitlines()[-1].removeprefix(f"{DpbnnError.__module__}.{DpbnnError.__name__}: ")
        except (RuntimeError, OSError) as error:  # whose text may say how many bytes a batch has
            text = (
                f"Worker processes must hand over every batch of a Dataset, got {type(error).__name__}: one was "
                "stopped, or memory, shared memory or open files ran out."
            )
        raise DpbnnError(text)

    def refuse_known_draws(self, workers: int) -> None:
        """What reading draws must be secret, as masks are: torch's draws are, and in worker processes NumPy's too."""
        if self.draws_by_itself:
            raise DpbnnError(
                "A Dataset must draw by torch's functions without a generator, if it draws, and else read a record the "
                "same every time; got one with a generator of its own, whose draws could not be kept secret, or with "
                "state that reading changes; leave the generator out (np.random will do in worker processes), or that."
            )
        if workers == 0 and self.draws_outside_torch:
            raise DpbnnError(
                "A Dataset that is read in this process must draw by torch, if it draws, got one that draws from "
                "NumPy's or Python's generator, which anybody may have seeded; draw by torch, or read it in worker "
                "processes: Execution(dataset_workers=1)."
            )


_Rows = tuple[int, Sequence[int]]
"""A step and the rows of its batch."""


@dataclass
class _Reading:
    """Reads one record after another in the user's process, each with torch's draws from generators of its own.

    They are seeded when something is drawn from them: a data set that draws nothing does not pay for it. Where NumPy's
    or Python's generators show afterwards that something was drawn from them too, they are put back, and the batch is
    read again with these seeded for each record.
    """

    records: DatasetRecords
    randomness: Randomness

    def read(self, batch: _Rows) -> Batch:
        """The records of one step."""
        step, rows = batch
        return _collate(self.records.empty, self.records.dtype, self.items(step, rows) if rows else [])

    def items(self, step: int, rows: Sequence[int]) -> list[Any]:
        """Its items, as the data set has them."""
        with _put_back():
            before = generators_of_the_process()
            items = self.one_by_one(step, rows, lambda *_: None)
            if before != generators_of_the_process():
                items = self.one_by_one(step, rows, partial(self.randomness.seed_process_but_torch, "reading"))
            return items

    def one_by_one(self, step: int, rows: Sequence[int], before: Callable[[int, int], None]) -> list[Any]:
        """Its items, with torch's draws redirected; `before` seeds what else draws, for the step and the row."""
        with drawing_from(self.randomness.reading(step, rows[0])) as generators:
            items = []
            for row in rows:
                generators.reseed(partial(self.randomness.seed_reading, step, row))
                before(step, row)
                items.append(_item(self.records.dataset, row))
            return items


@dataclass
class _ReadingAlone(_Reading, Dataset[Batch]):
    """The same in a process in which nothing else draws, so that NumPy's and Python's generators are the record's too.

    Batches are read with as little care as will do. Where the generators of the process show afterwards that something
    was drawn from them, the batch is read again, and all later ones, with torch's draws redirected; and where that was
    not all, with the generators of the process seeded for each record.
    """

    care: int = field(default=PLAIN, init=False)

    def __getitem__(self, batch: _Rows) -> Batch:
        return self.read(batch)

    def items(self, step: int, rows: Sequence[int]) -> list[Any]:
        self.randomness.seed_process("workers", step, 0)
        before = _every_generator_of_the_process()
        if self.care == PLAIN:
            items = [_item(self.records.dataset, row) for row in rows]
        else:
            seed = partial(self.randomness.seed_process, "reading") if self.care == SEEDED else lambda *_: None
            items = self.one_by_one(step, rows, seed)
        enough = REDIRECTED if torch.cuda.is_initialized() else PLAIN  # a device has a generator that is not looked at
        if self.care == SEEDED or (self.care >= enough and before == _every_generator_of_the_process()):
            return items
        self.care += 1
        return self.items(step, rows)


def _item(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except DpbnnError:
        raise
    except Exception as error:  # whose text and place may say which record it was, and so that the batch has it
        kind = type(error).__name__
    raise DpbnnError(  # outside, so that it does not carry the other one along
        f"Every record of a Dataset must be readable, got {kind} from one; [dataset[row] for row in "
        "range(len(dataset))] finds it, unless reading fails in worker processes alone."
    )


def as_records(x: Any, y: Any, dtype: torch.dtype) -> Records:
    """Tensors, arrays or a map-style dataset as records; floating-point inputs take the model's type."""
    if isinstance(x, ResidentRecords):
        return x if x.x.dtype == dtype or not x.x.is_floating_point() else as_records(x.x, x.y, dtype)
    if isinstance(x, (DataLoader, IterableDataset, Sampler)):
        raise DpbnnError(
            f"X must be a tensor, an array or a map-style Dataset, got {type(x).__name__}; batches are drawn here, as "
            "the plan accounts for them, so pass the data itself."
        )
    x = _as_array(x)
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
    if len(x) == 0:
        raise DpbnnError("A Dataset must hold at least one record, whose shape is looked at, got none.")
    one_x, one_y, draws = _looked_at(x, dtype)
    by_itself = has_generator(x) or (not draws and not _is_repeatable(x, dtype))
    return DatasetRecords(x, len(x), (one_x[:0], one_y[:0]), dtype, draws, by_itself)


def _looked_at(dataset: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, bool]:
    """The first record, and whether reading it draws outside torch."""
    with drawing_from(Generators.seeded(0)), _put_back():
        x, y = _collate(None, dtype, [dataset[0]])
        draws = all(_draws_outside_torch(dataset) for _ in range(LOOKS))
        if len(dataset) > 1 and _is_same_memory(dataset[0], dataset[1]):
            raise DpbnnError(
                "A Dataset must return new values for every record, got one memory for two; return copies."
            )
    return x, y, draws


def _is_same_memory(first: Any, second: Any) -> bool:
    """Whether reading the second record has written over the first."""
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
            read.append(_collate(None, dtype, [dataset[0]]))
    pairs = [pair for other in read[1:] for pair in zip(read[0], other, strict=True)]
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def _draws_outside_torch(dataset: Any) -> bool:
    before = generators_of_the_process()
    dataset[0]
    return before != generators_of_the_process()


def generators_of_the_process() -> Any:
    """The states of NumPy's and Python's own generators."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that a dataset might use
    words = state["state"]
    return random.getstate(), words["key"].tobytes(), words["pos"], state["has_gauss"], state["gauss"]


@contextmanager
def _put_back() -> Iterator[None]:
    """Leave NumPy's and Python's own generators as they were, if what is done inside has moved them."""
    of_python, of_numpy, before = random.getstate(), np.random.get_state(), generators_of_the_process()  # noqa: NPY002
    try:
        yield
    finally:
        if before != generators_of_the_process():
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002


def _every_generator_of_the_process() -> Any:
    return default_generators(torch.device("cpu")), generators_of_the_process()


def as_tensor(name: str, values: Any, dtype: torch.dtype) -> Tensor:
    """A tensor with records first: floating-point numbers in `dtype` or float32, whichever is wider for targets."""
    values = _as_array(values)
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


def _as_array(values: Any) -> Any:
    """Data frames, lists and arrays that may not be written to, as arrays; everything else as it is."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, (list, tuple)):
        try:
            values = np.asarray(values)
        except ValueError:  # which says how many rows there are
            raise DpbnnError(f"A {type(values).__name__} must hold rows of one length, got several lengths.") from None
    return values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values


def _collate(empty: Batch | None, dtype: torch.dtype, items: Sequence[Any]) -> Batch:
    if not items and empty is not None:
        return empty
    if not (isinstance(items[0], (tuple, list)) and len(items[0]) == 2):
        raise DpbnnError(f"A Dataset's items must be (x, y) pairs, got {type(items[0]).__name__}.")
    pair = None
    with suppress(RuntimeError, TypeError, ValueError):  # which say where in the batch, and how large it is
        pair = default_collate(list(items))
    if pair is None:
        kinds = " and ".join(type(part).__name__ for part in items[0])
        raise DpbnnError(
            "A Dataset's x and y must be tensors, arrays or numbers, each of one shape and type, got what cannot be "
            f"put together: {kinds}."
        )
    x, y = pair
    return as_tensor("X", x, dtype), as_tensor("y", y, dtype)
