"""CUDA graphs: work that is captured once and replayed at the cost of one launch.

A graph holds kernels with their addresses: Python runs once. So a model that decides anything on the host (by values,
by the host's random numbers, by a counter) is not captured.
"""

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from dpbnn._internals import ThreadMode
from dpbnn.device.streams import FIRST

__all__ = ["Graphs", "NoSync", "NotCapturable"]

_one_at_a_time = threading.Lock()
"""The streams of a capture are not told apart by threads: autograd has its own."""


class NotCapturable(Exception):
    """This work must not be captured; the message says why."""


class Graphs:
    """Captures for one device; all graphs share their memory, since they never run at the same time."""

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        torch.cuda.init()
        self._device, self._generators = device, generators
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device, FIRST)
        self._is_first = True

    @contextmanager
    def capture(self, host_state: Callable[[], Any]) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture the work inside, without doing it; raises if it changes the host's state."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        before = host_state()
        with _one_at_a_time, self._capturing(graph):
            yield graph
        if before != host_state():
            raise NotCapturable("the model draws random numbers on the host, or changes itself while it runs")

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        torch.cuda.synchronize(self._device)
        if self._is_first:
            torch.cuda.empty_cache()  # what the first steps took; graphs have memory of their own
            self._is_first = False
        default = torch.cuda.default_generators[self._device.index or 0]  # which belongs to every capture
        before = [(generator, generator.clone_state()) for generator in (*self._generators, default)]
        try:
            with torch.cuda.stream(self._stream), _no_garbage_collection():
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                yield
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
        waits = WAITING.intersection(func.tags) and any(
            isinstance(values, Tensor) and values.device.type == self._device_type for values in args
        )
        if waits or _goes_to_host(func, args, result):
            raise NotCapturable(f"{func} makes the host wait for the device")
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
    """What is collected during a capture may free memory, which must not become part of the graph."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
