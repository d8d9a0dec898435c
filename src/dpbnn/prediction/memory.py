"""How many records and draws run at a time: as many as a bound on memory allows, measured on one record."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpbnn._internals import ThreadMode, storage_key, tree_leaves
from dpbnn.device.generators import Generators, drawing_from, without_fast_path
from dpbnn.models.likelihoods import Moments
from dpbnn.prediction.ensemble import Ensemble, can_stack, repeated

__all__ = ["Chunks", "Measurements", "Needs", "PeakMemory", "chunks"]

CPU_ROOM = 2**25
"""What a CPU works on at a time: larger blocks leave its caches and only get slower."""

MIN_STACK = 8
"""Fewer draws than this run one by one: stacking them would cost what it saves."""

BUSY = 2**29
"""Bytes of one draw that keep a GPU busy: stacks would only be slower."""

HIDDEN_SCRATCH = 2
"""Kernels take memory that cannot be seen: twice of what is seen is set aside."""


@dataclass(frozen=True)
class Chunks:
    """How much is done at a time: `rows` and `draws` run together, and `part` records are read."""

    rows: int
    draws: int
    part: int


@dataclass(frozen=True)
class Needs:
    """What networks do with one kind of record, and how many bytes that takes.

    Attributes:
        alone: bytes of all that one record takes.
        least: bytes of one record, one draw's weights and its outputs: no prediction takes less.
        each_row: bytes of each further record.
        weights: bytes of one draw's weights.
        result: bytes of what one draw predicts for one record.
        keeps_draws: whether the result holds every draw, not their sum.
        writes: whether the network writes to its inputs.
        is_random: whether the network draws random numbers.
    """

    alone: int
    least: int
    each_row: int
    weights: int
    result: int
    keeps_draws: bool
    writes: bool
    is_random: bool


@dataclass
class Measurements:
    """What was measured of networks, by the kind of record: measuring takes longer than a small prediction.

    Where several threads measure at the same time, all use what one of them has entered first.
    """

    by_kind: dict[Any, Needs] = field(default_factory=dict)
    stacks: dict[Any, bool] = field(default_factory=dict)

    def needs(self, ensemble: Ensemble, record: Tensor, tally: Callable[[Any], object]) -> Needs:
        """What the ensemble needs for such records; `tally` does what is done with each result."""
        kind = _kind(ensemble, record)
        return self.by_kind.get(kind) or self.by_kind.setdefault(kind, _measured(ensemble, record, tally))

    def can_stack(self, ensemble: Ensemble, record: Tensor) -> bool:
        """Whether vmap can run several draws at once."""
        kind = _kind(ensemble, record)
        if kind not in self.stacks:
            self.stacks.setdefault(kind, can_stack(ensemble, record))
        return self.stacks[kind]


def _kind(ensemble: Ensemble, record: Tensor) -> Any:
    computes_in = torch.is_autocast_enabled(record.device.type)
    of_network = ensemble.posterior.keeps_dropout, type(ensemble.objective.likelihood)
    return record.shape, record.dtype, record.device, computes_in, *of_network


def _measured(ensemble: Ensemble, record: Tensor, tally: Callable[[Any], object]) -> Needs:
    """One record is run alone and three times over."""
    weights = ensemble.weights()
    held, peaks, tallied, is_spoiled = (record, *weights.values()), [], [], []
    with drawing_from(Generators.seeded(0)) as generators, without_fast_path():  # whose memory nobody sees
        for copies in (1, 3):
            with PeakMemory(held) as memory:
                x = repeated(record, copies)
                predicted = ensemble.one(weights, x)
                peaks.append(memory.peak)
                is_spoiled.append(not torch.equal(x.nan_to_num(), repeated(record, copies).nan_to_num()))
                tally(type(predicted)(*(values.unsqueeze(0) for values in predicted)))
                tallied.append(memory.peak)
    size = sum(values.nbytes for values in weights.values())
    return Needs(
        alone=tallied[0],
        least=record.nbytes + size + peaks[0],
        each_row=max(1, HIDDEN_SCRATCH * (tallied[1] - tallied[0]) // 2),
        weights=size,
        result=sum(values.nbytes for values in predicted) // 3,
        keeps_draws=isinstance(predicted, Moments),
        writes=any(is_spoiled),
        is_random=generators.used,
    )


def chunks(
    ensemble: Ensemble, needs: Needs, record: Tensor, num_records: int, memory_limit: int, keep_draws: bool = False
) -> Chunks:
    """As much as `memory_limit` bytes hold, or on a CPU what suits its caches; at least one of each.

    Networks that run get half of the memory, records that were read and their results a quarter; the rest stays free.
    """
    on_cpu = record.device.type == "cpu"
    # Draws with masks share their weights; any other draw holds its weights, and once more in the stack.
    each_draw = 0 if ensemble.posterior.keeps_dropout else needs.alone + 2 * needs.weights
    room = min(memory_limit // 2, CPU_ROOM) if on_cpu else memory_limit // 2
    rows = max(1, min(room // needs.each_row, num_records))
    # Draws that are kept wait on their device for the end, and are joined there; on a CPU they are the result.
    keeps = not on_cpu and (keep_draws or needs.keeps_draws)
    kept = 2 * ensemble.num_draws * needs.result if keeps else 0
    part = max(rows, memory_limit // 4 // (2 * record.nbytes + 5 * needs.result + kept))
    # Half of the room, as stacks are slow when they are large.
    draws = min(room // 2 // (each_draw + needs.each_row * rows), ensemble.num_draws)
    is_busy = not on_cpu and needs.each_row * rows > BUSY
    return Chunks(rows, 1 if is_busy or draws < MIN_STACK else draws, part)


class PeakMemory(ThreadMode):
    """The most bytes that the tensors made by torch's operations held at a time; `known` ones are not counted."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._held = {storage_key(values.untyped_storage()) for values in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for values in tree_leaves(result):
            if isinstance(values, Tensor) and values.layout == torch.strided:
                self._hold(values.untyped_storage())
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key = storage_key(storage)
        if key not in self._held:
            self._held.add(key)
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._let_go, key, storage.nbytes())

    def _let_go(self, key: int, size: int) -> None:
        self._held.discard(key)
        self._now -= size
