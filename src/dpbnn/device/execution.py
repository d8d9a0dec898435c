"""How a run is carried out: speed and memory, never what is released nor what it costs."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from dpbnn import _validate
from dpbnn.errors import DpbnnError

__all__ = ["PRECISIONS", "Execution", "computing_in", "full_precision", "without_autocast"]

Setting = tuple[str | None, bool | None]
"""Of float32 matrix products, and of TF32 in convolutions; None for what the user has set."""
SETTINGS: dict[str, Setting] = {
    "float32": ("highest", False),
    "tf32": ("high", True),
    # bfloat16 numbers lose nothing in TF32, in which products of theirs that are written out may be taken.
    "bfloat16": ("high", False),
}
PRECISIONS = tuple(SETTINGS)


@dataclass(frozen=True)
class Execution:
    """Speed and memory.

    Args:
        micro_batch_size: records taken through the model at a time.
        precision: what the model computes its outputs and their gradients in: "float32", "tf32" or "bfloat16" (by
            autocast); None leaves torch's settings as they are. Norms, clipping, sums, noise and updates are done in
            float32 or wider whatever is chosen. "tf32" is for GPUs: on a CPU without it nothing changes.
        graphs: on a CUDA device, capture the steps once as CUDA graphs and replay them, where the model allows it.
        data_on_device: keep all records on the device that trains; None does where they take less than half of its
            free memory. Elsewhere batches are read ahead of time.
        dataset_workers: processes that read a `Dataset`; tensors and arrays need none, and get none.
        checkpoint_seconds: how often a checkpoint's state is written, or less often where that would take more than a
            twentieth of the time (many kept samples); what happens in between is in its journal.
        noise: where the noise comes from, by name (`dpbnn.privacy.noise.source`).
    """

    micro_batch_size: int | None = None
    precision: str | None = None
    graphs: bool = True
    data_on_device: bool | None = None
    dataset_workers: int = 0
    checkpoint_seconds: float = 10.0
    noise: str = "standard"

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None:
            _validate.whole_number("micro_batch_size", self.micro_batch_size)
        if self.precision is not None:
            _validate.one_of("precision", self.precision, PRECISIONS)
        if not isinstance(self.graphs, bool):
            _validate.refuse("graphs", "True or False", self.graphs)
        if not isinstance(self.data_on_device, bool | None):
            _validate.refuse("data_on_device", "True, False or None", self.data_on_device)
        _validate.whole_number("dataset_workers", self.dataset_workers, at_least=0)
        _validate.non_negative("checkpoint_seconds", self.checkpoint_seconds)
        if not isinstance(self.noise, str):
            _validate.refuse("noise", "the name of a noise source", self.noise)


@contextmanager
def computing_in(precision: str | None, device: torch.device) -> Iterator[None]:
    """Products of the model in this precision; afterwards torch's settings are as before."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)
    setting = (None, None) if precision is None else SETTINGS[precision]
    with _gate.holding(setting), nullcontext() if precision is None else autocast:
        yield


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products of float32 numbers in float32: no autocast, no TF32, no bfloat16, whatever the user has set."""
    with _gate.holding(("highest", None)), without_autocast(device):
        yield


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """In the types of the numbers; to ask first takes less time than to switch off what is off."""
    is_on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()


class _Gate:
    """Torch's settings of precision hold for the whole process: threads that want others wait for each other.

    A thread never waits while it holds a setting: inside of another block it lets go of the outer one first.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_user = self._now = ("highest", True)
        self._holders = 0
        self._mine = threading.local()

    @contextmanager
    def holding(self, wanted: Setting) -> Iterator[None]:
        """Inside, products are computed as `wanted`, whatever other threads want."""
        stack: list[Setting] = self._mine.__dict__.setdefault("stack", [])
        if stack:
            self._leave()
        self._enter(wanted)
        stack.append(wanted)
        try:
            yield
        finally:
            self._leave()
            stack.pop()
            if stack:
                self._enter(stack[-1])

    def _enter(self, wanted: Setting) -> None:
        with self._changed:
            while self._holders and self._now != self._meant(wanted):
                self._changed.wait()
            if not self._holders:
                self._by_user = self._now = _set_by_user()
                self._set(self._meant(wanted))
            self._holders += 1

    def _leave(self) -> None:
        with self._changed:
            self._holders -= 1
            if not self._holders:
                self._set(self._by_user)
                self._changed.notify_all()

    def _meant(self, wanted: Setting) -> tuple[str, bool]:
        products, convolutions = wanted
        return products or self._by_user[0], self._by_user[1] if convolutions is None else convolutions

    def _set(self, setting: tuple[str, bool]) -> None:
        if setting[0] != self._now[0]:
            torch.set_float32_matmul_precision(setting[0])
        if setting[1] != self._now[1]:
            torch.backends.cudnn.allow_tf32 = setting[1]
        self._now = setting


def _set_by_user() -> tuple[str, bool]:
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError as error:  # torch has two ways to set this, and does not take both
        raise DpbnnError(
            "torch's precision must be set by torch.set_float32_matmul_precision, if at all, got settings of "
            "fp32_precision too; leave those out, and use Execution(precision=...)."
        ) from error


_gate = _Gate()
