"""Batches on the device that trains, read and moved there while it is busy with the ones before."""

import queue
import threading
from collections.abc import Iterator

import torch

from dpbnn.data.records import Batch

__all__ = ["read_ahead"]

BATCHES_AHEAD = 4


def read_ahead(batches: Iterator[Batch], device: torch.device, when_asked: bool) -> Iterator[Batch]:
    """The same batches on `device`; those that come from the host's memory to a CUDA device, by a thread.

    `when_asked` reads each only when it is asked for, in the thread that asks: code of the user's may not expect
    another.
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
    reader = _Reader(batches, device)
    try:
        yield from reader
    finally:
        reader.stop()


class _Reader:
    """A thread that copies batches over a stream of its own, from memory that the device can read by itself."""

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._stream = torch.cuda.Stream(device)
        self._ready: queue.Queue[tuple[Batch, torch.cuda.Event] | BaseException | None] = queue.Queue(BATCHES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            found = self._ready.get()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            (x, y), copied = found
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            for values in (x, y):
                values.record_stream(current)
            yield x, y

    def stop(self) -> None:
        """Let the thread end; it may be waiting for room."""
        self._stopped.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.05)
            except queue.Empty:
                continue

    def _read(self) -> None:
        try:
            for x, y in self._batches:
                if self._stopped.is_set():
                    return
                with torch.cuda.stream(self._stream):
                    moved = tuple(v.pin_memory().to(self._device, non_blocking=True) for v in (x, y))
                    copied = torch.cuda.Event()
                    copied.record(self._stream)
                self._ready.put(((moved[0], moved[1]), copied))
            self._ready.put(None)
        except BaseException as error:  # whatever it is, it is raised where the batch is asked for
            self._ready.put(error)
