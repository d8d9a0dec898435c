"""Branches of a CUDA graph: who waits for whom, and what is held until all have come together."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

from dpbnn.device import streams


class Memory:
    """Anything that can be let go."""


@pytest.fixture
def capturing(monkeypatch):
    """A stand-in for a capture: streams that note what they do and for whom they wait."""
    log, current = [], []

    class Stream:
        def __init__(self, device=0, priority=0):
            self.name, self.device, self.device_index = f"{priority}:{len(made)}", device, device
            made.append(self)

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def inside(stream):
        current.append(stream)
        yield
        current.pop()

    made = []
    current.append(Stream())
    monkeypatch.setattr(streams, "_is_capturing", lambda: True)
    monkeypatch.setattr(streams, "_streams", {})
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    log_of = lambda item: log.append(f"{item} in {current[-1].name}")  # noqa: E731
    return log, log_of


def test_without_a_capture_work_is_done_in_order_and_nothing_is_held():
    seen, memory = [], Memory()
    assert streams.side_by_side(lambda item: seen.append(item) or 2 * item, iter([3, 1, 2])) == [6, 2, 4]
    assert seen == [3, 1, 2]
    for _ in streams.in_streams([0, 1]):
        streams.hold(memory)
    with streams.beside() as stream:
        assert stream is None
    streams.join(stream)
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is None


def test_each_stream_starts_behind_the_main_stream_which_then_waits_for_all(capturing):
    log, do = capturing
    streams.side_by_side(do, "ab")
    assert log == [
        *("-1:1 waits for 0:0", "a in -1:1", "-1:2 waits for 0:0", "b in -1:2"),
        *("0:0 waits for -1:1", "0:0 waits for -1:2"),
    ]
    log.clear()
    streams.side_by_side(do, "c")  # one alone needs no stream
    assert log == ["c in 0:0"]
    streams.side_by_side(do, "de")
    assert {line.split(" in ")[1] for line in log if " in " in line} == {"0:0", "-1:1", "-1:2"}  # used again


def test_streams_do_not_nest_and_hold_what_they_use_until_all_are_joined(capturing):
    _, do = capturing
    memory = Memory()
    gone = weakref.ref(memory)

    def work(item):
        nonlocal memory
        streams.side_by_side(do, [f"{item}1", f"{item}2"])
        with streams.beside() as stream:
            assert stream is None
        if memory is not None:
            streams.hold(memory)
            memory = None
        assert gone() is not None

    streams.side_by_side(work, "ab")
    gc.collect()
    assert gone() is None
    assert [line for line in capturing[0] if " in " in line] == ["a1 in -1:1", "a2 in -1:1", "b1 in -1:2", "b2 in -1:2"]


def test_a_stream_that_fails_leaves_no_trace(capturing):
    def fail(item):
        streams.hold(Memory())
        raise ValueError(item)

    with pytest.raises(ValueError, match="a"):
        streams.side_by_side(fail, "ab")
    assert capturing[0][-2:] == ["0:0 waits for -1:1", "0:0 waits for -1:2"]
    assert not streams._inside
    assert not streams._held


def test_work_beside_the_rest_is_joined_where_it_is_needed(capturing):
    log, do = capturing
    with streams.beside() as drawing:
        do("noise")
    do("clipping")
    streams.join(drawing, None)
    assert log == ["0:1 waits for 0:0", "noise in 0:1", "clipping in 0:0", "0:0 waits for 0:1"]
