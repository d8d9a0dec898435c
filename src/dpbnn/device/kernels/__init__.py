"""Kernels for a GPU, in Triton, which torch brings on Linux.

They are imported when a GPU first needs them: Triton loads slowly. Where it is missing or cannot compile, callers use
torch's operations, which take more launches.
"""

from functools import cache
from importlib.util import find_spec

import torch

from dpbnn._warn import warn

__all__ = ["work"]


@cache
def work() -> bool:
    """Whether they run here: kernels are compiled when they are first used, which takes a C compiler."""
    if find_spec("triton") is None:
        return False
    try:
        from dpbnn.device.kernels import clipping as of_clipping

        numbers, out = torch.ones(1, 3, device="cuda"), torch.zeros(1, 1, device="cuda", dtype=torch.float64)
        of_clipping.squares[1, 1](numbers, out, 3, 1, PIECE=128, BLOCK=128)
        return float(out) == 3.0
    except Exception as error:  # whatever a compiler, its cache or its driver raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warn(f"Triton does not work here, and steps will be slower: {reason}")
        return False
