"""Recording work on a CUDA device, to be replayed at the cost of one launch (CUDA graphs).

What is recorded are kernels with their addresses: Python runs once. So a model that decides anything on the host (by
values, by the host's random numbers, by a counter of its own) is not recorded.
"""

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpbnn.device.generators import ThreadMode
from dpbnn.device.streams import FIRST
from dpbnn.privacy.noise import cuda as cuda_noise
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.types import Weights

__all__ = ["Graphs", "NoSync", "NotRecordable", "SharedNoise"]


_one_at_a_time = threading.Lock()
"""Branches of a recording are not told apart by threads: autograd has its own."""


class NotRecordable(Exception):
    """This work must not be recorded; the message says why."""


@dataclass(frozen=True)
class SharedNoise(Randomness):
    """Randomness whose noise belongs to the step that was begun last, not to the one that stands in a recording.

    On a device it comes from one generator, which is known to the recordings and seeded before each replay.
    """

    on_device: torch.Generator = field(default_factory=torch.Generator, repr=False)
    begun: list[int] = field(default_factory=list, repr=False)
    ahead: deque[Tensor] = field(default_factory=deque, repr=False)
    used: list[Tensor] = field(default_factory=list, repr=False)
    on_host: dict[int, np.random.Generator] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(own: Randomness, device: torch.device) -> "SharedNoise":
        """The same key."""
        return SharedNoise(own.key, own.source, torch.Generator(device))

    def begin(self, step: int) -> None:
        """The noise that is drawn next is this step's."""
        self.begun[:] = [step]
        self.on_host.clear()
        self.ahead.clear()
        self.used.clear()
        self.on_device.manual_seed(self.torch_seed("noise", step))

    def generator(self, purpose: str, step: int, part: int = 0) -> np.random.Generator:
        """For noise that of the step that was begun: the same one for all runs, which goes on from run to run."""
        if purpose != "noise":
            return super().generator(purpose, step, part)
        if part not in self.on_host:
            self.on_host[part] = super().generator(purpose, self.begun[0], part)
        return self.on_host[part]

    def draw_on_device(self, step: int, device: torch.device) -> cuda_noise.Draw:
        """From the one generator, as `begin` has seeded it, or what was drawn ahead."""
        return self._next if self.ahead else cuda_noise.drawn(self.on_device)

    def _next(self, count: int, dtype: torch.dtype) -> Tensor:
        noise = self.ahead.popleft()
        if len(noise) != count or noise.dtype != dtype:
            raise RuntimeError("noise that was drawn ahead does not fit; this is a bug, and nothing must be released.")
        self.used.append(noise)  # made in another branch, and so held
        return noise

    def draw_ahead(self, releases: Sequence[Weights]) -> None:
        """Draw the noise of these releases, which will be asked for in this order: that of many small ones at once."""
        draw = cuda_noise.drawn(self.on_device)
        types = [cuda_noise.widest(gradients.values()) for gradients in releases]
        totals = [sum(values.numel() for values in gradients.values()) for gradients in releases]
        if len(set(types)) == 1 and sum(totals) <= cuda_noise.CHUNK:
            self.ahead.extend(draw(sum(totals), types[0]).split(totals))
            return
        for total, dtype in zip(totals, types, strict=True):
            self.ahead.extend(draw(size, dtype) for size in cuda_noise.chunks_of(total))


class Graphs:
    """Records for one device; all recordings share their memory, since they never run at the same time."""

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        torch.cuda.init()
        self._device, self._generators = device, generators
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device, FIRST)
        self._is_first = True

    def without_waiting(self, work: Callable[[], None]) -> None:
        """Do the work; whatever would make the host wait for the device raises."""
        with NoSync(self._device.type):
            work()

    def record(self, work: Callable[[], object], host_state: Callable[[], Any]) -> Callable[[], None]:
        """Record what `work` does on the device, without doing it; raises if the host's state changes by it."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        before = host_state()
        with _one_at_a_time:
            self._capture(graph, work)
        if before != host_state():
            raise NotRecordable("the model draws random numbers on the host, or changes itself while it runs")
        return graph.replay

    def _capture(self, graph: torch.cuda.CUDAGraph, work: Callable[[], object]) -> None:
        torch.cuda.synchronize(self._device)
        if self._is_first:
            torch.cuda.empty_cache()  # what the first steps took; recordings have memory of their own
            self._is_first = False
        default = torch.cuda.default_generators[self._device.index or 0]  # which belongs to every capture
        before = [(generator, generator.clone_state()) for generator in (*self._generators, default)]
        try:
            with torch.cuda.stream(self._stream), _no_garbage_collection():
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                work()
                graph.capture_end()
        except BaseException:
            self._recover(graph, before)
            raise

    def _recover(self, graph: torch.cuda.CUDAGraph, before: Sequence[tuple[torch.Generator, torch.Generator]]) -> None:
        """A capture that failed leaves generators waiting for its end: put copies of their states in place."""
        with suppress(RuntimeError), torch.cuda.stream(self._stream):
            graph.capture_end()
        torch.cuda.synchronize(self._device)
        for generator, state in before:
            generator.graphsafe_set_state(state)


class NoSync(ThreadMode):
    """Refuses operations that make the host wait for a device, which no CUDA graph can hold; for this thread alone."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        looks = WAITING.intersection(func.tags) and any(
            isinstance(values, Tensor) and values.device.type == self._device_type for values in args
        )
        if looks or _goes_to_host(func, args, result):
            raise NotRecordable(f"{func} makes the host wait for the device")
        return result


WAITING = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def _goes_to_host(func: Any, args: tuple[Any, ...], result: Any) -> bool:
    """Whether numbers are copied from a device to the host."""
    if func is torch.ops.aten.copy_.default:
        source, target = args[1], args[0]
    elif func is torch.ops.aten._to_copy.default:
        source, target = args[0], result
    else:
        return False
    return bool(source.is_cuda and not target.is_cuda)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """What is collected while a recording goes on may free memory, which must not become part of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
