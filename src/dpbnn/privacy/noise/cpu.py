"""The noise of one step on a CPU, drawn by all of torch's threads.

Every group of numbers has a generator of its own, so that it does not matter which thread draws it.

The threads are those of torch's OpenMP library: they wait for torch's next operation in a busy loop, and further
threads would not get a core. Without that library the calling thread does everything.
"""

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpbnn.privacy.noise.normals import Normals

__all__ = ["add_normals"]

Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_spare: dict[int, list[Normals]] = {}
"""Memory by size; taken and put back, as threads of OpenMP keep nothing between tasks."""


def add_normals(
    tensors: Sequence[Tensor], scale: float, generator: Callable[[int], np.random.Generator], chunk: int
) -> None:
    """Add `scale` times an independent standard normal to every number, in place.

    Args:
        tensors: float32 or float64, contiguous.
        scale: the standard deviation.
        generator: gives the generator of one group of numbers.
        chunk: the most numbers in a group: few enough to stay in a processor's cache.
    """
    every = list(enumerate(_grouped(tensors, chunk)))
    groups = iter(every)
    spare = _spare.setdefault(chunk, [])

    def work() -> None:
        try:
            normals = spare.pop()
        except IndexError:  # none, or others were faster
            normals = Normals(chunk // 2)
        for part, pieces in groups:
            _add_to_group(pieces, scale, generator(part), normals)
        spare.append(normals)

    _on_threads(work, min(len(every), torch.get_num_threads()))


def _add_to_group(pieces: list[Tensor], scale: float, generator: np.random.Generator, normals: Normals) -> None:
    ends = list(accumulate(piece.numel() for piece in pieces))
    count = ends[-1]
    noise: npt.NDArray[Any]
    if pieces[0].dtype == torch.float64:
        noise = scale * generator.standard_normal(count)
    else:
        # Unlike the bit generator's random_raw, integers lets other threads work.
        bits = generator.integers(0, 2**64 - 1, (count + 1) // 2, dtype=np.uint64, endpoint=True)
        noise = normals.from_bits(bits, generator, scale)[:count]
    for piece, end in zip(pieces, ends, strict=True):
        values = piece.numpy()
        values += noise[end - len(values) : end]


def _grouped(tensors: Sequence[Tensor], chunk: int) -> Iterator[list[Tensor]]:
    """All numbers as flat pieces, in groups of one type: an even number of them if there are several, all alike."""
    for dtype in (torch.float32, torch.float64):
        flat = [values.view(-1) for values in tensors if values.dtype == dtype]
        total = sum(values.numel() for values in flat)
        size = math.ceil(total / max(1, 2 * math.ceil(total / (2 * chunk)))) if total > chunk else total
        groups: dict[int, list[Tensor]] = {}
        position = 0
        for values in flat:
            while values.numel():
                group, filled = divmod(position, size)
                piece, values = values[: size - filled], values[size - filled :]
                groups.setdefault(group, []).append(piece)
                position += piece.numel()
        yield from groups.values()


def _on_threads(work: Callable[[], None], threads: int) -> None:
    """Call `work` once on each of so many of torch's threads and wait for all."""
    library = _openmp()
    if library is None or threads < 2:
        work()
        return
    failures: list[BaseException] = []

    def task(_: object) -> None:
        try:
            work()
        except BaseException as error:  # nothing may pass through the library, which is not Python
            failures.append(error)

    library.GOMP_parallel(Task(task), None, ctypes.c_uint(threads), ctypes.c_uint(0))
    if failures:
        raise failures[0]


@cache
def _openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP library, if torch has loaded it: no second one, whose threads would compete with torch's."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        try:
            return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
    return None
