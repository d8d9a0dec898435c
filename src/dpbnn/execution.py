"""How a run is carried out: speed and memory, never what is released nor what it costs."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dpbnn import _validate
from dpbnn.types import DpbnnWarning

__all__ = ["PRECISIONS", "Execution", "computing_in", "warn_of_slowness"]

PRECISIONS = ("float32", "tf32", "bfloat16")
PACKAGE = os.path.join(os.path.dirname(__file__), "")


@dataclass(frozen=True)
class Execution:
    """Speed and memory.

    Args:
        micro_batch_size: records taken through the model at a time.
        precision: what the model computes its outputs and their gradients in: "float32", "tf32" or "bfloat16" (by
            autocast); None leaves torch's settings as they are. Norms, clipping, sums, noise and updates are done in
            float32 or wider whatever is chosen. "tf32" is for GPUs: on a CPU without it nothing changes.
        graphs: on a CUDA device, record the steps once and replay them (CUDA graphs) where the model can be recorded.
        data_on_device: keep all records on the device that trains; None does where they take less than half of its
            free memory. Elsewhere batches are read ahead of time.
        dataset_workers: processes that read a `Dataset`; tensors and arrays need none, and get none.
        checkpoint_seconds: how often a checkpoint's state is written, or less often where that would take more than a
            twentieth of the time (many kept samples); what happens in between is in its journal.
    """

    micro_batch_size: int | None = None
    precision: str | None = None
    graphs: bool = True
    data_on_device: bool | None = None
    dataset_workers: int = 0
    checkpoint_seconds: float = 10.0

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


@contextmanager
def computing_in(precision: str | None, device: torch.device) -> Iterator[None]:
    """Products of the model in this precision; afterwards torch's settings are as before."""
    if precision is None:
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    # bfloat16 numbers lose nothing in TF32, in which products of theirs that are written out may be taken.
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def warn_of_slowness(text: str) -> None:
    """A warning that points at the line outside of this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DpbnnWarning, stacklevel=level)
