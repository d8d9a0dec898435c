"""Kernels are used where they work, and only there."""

import pytest

from dpbnn.device import kernels
from dpbnn.errors import DpbnnWarning


@pytest.fixture(autouse=True)
def _forgets():
    kernels.work.cache_clear()
    yield
    kernels.work.cache_clear()


def test_where_triton_is_not_there_it_is_not_used(monkeypatch):
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels.work()


def test_where_triton_does_not_work_it_is_not_used_and_that_is_said_once(monkeypatch):
    of_clipping = pytest.importorskip("dpbnn.device.kernels.clipping", exc_type=ImportError)
    monkeypatch.setattr(of_clipping, "squares", None)
    with pytest.warns(DpbnnWarning, match="Triton does not work here, and steps will be slower: .*[^\\n]$"):
        assert not kernels.work()
    assert not kernels.work()
