"""How many records and draws run at a time: as many as fit into a memory limit, by measurements of one record."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpbnn._internals import ThreadMode, storage_key, tree_leaves
from dpbnn.device.generators import Generators, drawing_from, without_fast_path
from dpbnn.models.likelihoods import Moments
from dpbnn.prediction.ensemble import Ensemble, repeated

__all__ = ["Chunks", "Measurements", "Needs", "PeakMemory", "chunks", "measured"]

Result = TypeVar("Result")

CPU_ROOM = 2**25
"""Bytes that a CPU works on at a time: larger blocks leave its caches and are slower."""

MIN_STACK = 8
"""Fewer draws run one by one: stacking them costs what it saves."""

BUSY = 2**29
"""Bytes of one draw that keep a GPU busy: stacks are slower there."""

HIDDEN_SCRATCH = 2
"""Kernels take memory that cannot be seen: twice what is seen is set aside."""


@dataclass(frozen=True)
class Chunks:
    """How much is done at a time: `rows` and `draws` run together, and `part` records are read."""

    rows: int
    draws: int
    part: int


@dataclass(frozen=True)
class Needs:
    """What networks do with one kind of record, and how many bytes that takes."""

    alone: int  # of one record with one draw
    least: int  # of one record, one draw's weights and its outputs: no prediction takes less
    each_row: int  # of each further record
    weights: int  # of one draw's weights
    result: int  # of what one draw predicts for one record
    keeps_draws: bool  # whether the result holds every draw, not their sum
    writes: bool  # whether the network writes to its inputs
    is_random: bool  # whether the network draws random numbers


class Measurements:
    """Remembers what was measured of networks: measuring takes longer than a small prediction.

    Threads may share it. Where several measure at the same time, all use what the first of them enters.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, measure: Callable[..., Result], ensemble: Ensemble, record: Tensor, *arguments: Any) -> Result:
        """`measure(ensemble, record, *arguments)`, computed once for each kind of record."""
        autocast = torch.is_autocast_enabled(record.device.type)
        network = ensemble.posterior.keeps_dropout, type(ensemble.objective.likelihood)
        kind = measure, record.shape, record.dtype, record.device, autocast, *network
        if kind not in self._known:
            self._known.setdefault(kind, measure(ensemble, record, *arguments))
        result: Result = self._known[kind]
        return result


def measured(ensemble: Ensemble, record: Tensor, tally: Callable[[Any], object]) -> Needs:
    """Run one record alone and three times over; `tally` does what a prediction does with each result."""
    weights = ensemble.weights()
    held, peaks, tallied, spoiled = (record, *weights.values()), [], [], []
    with drawing_from(Generators.seeded(0)) as generators, without_fast_path():  # whose memory nobody sees
        for copies in (1, 3):
            with PeakMemory(held) as memory:
                x = repeated(record, copies)
                predicted = ensemble.one(weights, x)
                peaks.append(memory.peak)
                spoiled.append(not torch.equal(x.nan_to_num(), repeated(record, copies).nan_to_num()))
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
        writes=any(spoiled),
        is_random=generators.used,
    )


def chunks(
    ensemble: Ensemble, needs: Needs, record: Tensor, num_records: int, memory_limit: int, keep_draws: bool = False
) -> Chunks:
    """As many rows and draws as `memory_limit` bytes hold, on a CPU as many as suit its caches; at least one of each.

    Networks that run get half of the memory, records that were read and their results a quarter; the rest stays free.
    """
    on_cpu = record.device.type == "cpu"
    # Draws with masks share their weights; others hold their weights twice, by themselves and in the stack.
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
