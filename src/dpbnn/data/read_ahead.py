"""Batches on the device that trains, read and copied there while it works on earlier ones."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

import torch

from dpbnn.data.records import Batch

__all__ = ["read_ahead"]

BATCHES_AHEAD = 4


def read_ahead(batches: Iterator[Batch], device: torch.device, when_asked: bool) -> Iterator[Batch]:
    """The same batches on `device`; to a CUDA device, a thread copies them from the host's memory.

    With `when_asked` each is read only when it is asked for, by the thread that asks: the user's code may not expect
    another thread.
    """
    if device.type != "cuda" or when_asked:
        yield from ((x.to(device), y.to(device)) for x, y in batches)
        return
    first = next(batches, None)
    if first is None:
        return
    yield first[0].to(device), first[1].to(device)
    if first[0].is_cuda:
        yield from batches
        return
    copier = _DeviceCopier(batches, device)
    try:
        yield from copier
    finally:
        copier.stop()


class _DeviceCopier:
    """A thread that copies batches from pinned memory, on a CUDA stream beside the training."""

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._stream = torch.cuda.Stream(device)
        self._ready: queue.Queue[tuple[Batch, torch.cuda.Event] | BaseException | None] = queue.Queue(BATCHES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            (x, y), copied = item
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            for values in (x, y):
                values.record_stream(current)
            yield x, y

    def stop(self) -> None:
        """Let the thread end; it may be waiting for room."""
        self._stopped.set()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._ready.get(timeout=0.05)

    def _read(self) -> None:
        try:
            for x, y in self._batches:
                if self._stopped.is_set():
                    return
                with torch.cuda.stream(self._stream):
                    x, y = (values.pin_memory().to(self._device, non_blocking=True) for values in (x, y))
                    self._ready.put(((x, y), self._stream.record_event()))
            self._ready.put(None)
        except BaseException as error:  # raised again where the batch is asked for
            self._ready.put(error)
