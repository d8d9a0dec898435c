"""Independent work side by side: in streams of a CUDA graph, while one is being captured; else in a row.

Small kernels keep a device busy only together. Work `beside` the rest is needed later, and so gives way to the rest.

The allocator gives memory out again as soon as Python lets it go, but only in the order of the stream that it was made
in. So work in one stream must `hold` the tensors of others that it uses until all streams have come together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["FIRST", "beside", "hold", "in_streams", "join", "side_by_side"]

Item = TypeVar("Item")
Result = TypeVar("Result")

FIRST, LATER = -1, 0
"""Priorities. Streams of different priorities are never the same; of one priority there are 32."""
_streams: dict[int, list[torch.cuda.Stream]] = {}
_inside = False
_held: list[object] = []


def _is_capturing() -> bool:
    """Whether this thread's work is being captured; other threads may work meanwhile."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def hold(values: object) -> None:
    """In a stream, keep this until all streams have come together; elsewhere nothing."""
    if _inside and _is_capturing():
        _held.append(values)


@contextmanager
def beside() -> Iterator[torch.cuda.Stream | None]:
    """A stream beside all that follows, up to `join`; None where nothing is captured."""
    if not _is_capturing() or _inside:
        yield None
        return
    main = torch.cuda.current_stream()
    stream = torch.cuda.Stream(main.device, LATER)
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        yield stream


def join(*streams: torch.cuda.Stream | None) -> None:
    """What follows comes after these streams."""
    for stream in streams:
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """``[work(item) for item in items]``, each in a stream."""
    return [work(item) for item in in_streams(list(items))]


def in_streams(items: Sequence[Item]) -> Iterator[Item]:
    """The items, for a loop each pass of which has a stream; inside of one there are no others."""
    global _inside
    if len(items) < 2 or not _is_capturing() or _inside:
        yield from items
        return
    main = torch.cuda.current_stream()
    streams = _streams.setdefault(main.device_index, [])
    while len(streams) < len(items):
        streams.append(torch.cuda.Stream(main.device, FIRST))
    _inside = True
    try:
        for item, stream in zip(items, streams, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                yield item
    finally:
        _inside = False
        for stream in streams[: len(items)]:
            main.wait_stream(stream)
        _held.clear()
