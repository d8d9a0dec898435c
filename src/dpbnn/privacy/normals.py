"""Standard normals from uniforms, fast in plain torch and true far out into the tails (Box and Muller 1958).

    z = sqrt(-2 log w) (cos a, sin a),     w uniform on (0, 1) in float64, a uniform on the circle in float32

The largest values come from the smallest w, of which 53 bits know too few: w below 2^-24 is drawn again with 53 bits
more, so that the normals end beyond 10 standard deviations. An end within reach would be a hole: a larger value would
prove that a record was there.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["normals_from_uniforms"]

REDRAWN_BELOW = 2.0**-24
REDRAWN_BEYOND = math.sqrt(-2.0 * math.log(REDRAWN_BELOW))
"""The radius, 5.77, that belongs to it; beyond it lies one in 16 million."""


def normals_from_uniforms(w: Tensor, turns: Tensor, uniforms: Callable[[int], Tensor], out: Tensor) -> Tensor:
    """Two independent standard normals from each pair of uniforms on [0, 1); all three tensors are overwritten.

    Args:
        w: float64.
        turns: float32; angles in units of a full turn.
        uniforms: gives as many further float64 uniforms on (0, 1] as it is asked for.
        out: float32 of twice the length, which is returned: all first normals, then all second ones.
    """
    if w.is_cuda:  # asking whether there are any to be drawn again would make the device wait
        w = torch.where(w < REDRAWN_BELOW, uniforms(len(w)) * REDRAWN_BELOW, w)
    first, second = out.chunk(2)
    radius = first.copy_(w.log_()).mul_(-2.0).sqrt_()
    if not w.is_cuda and radius.amax() > REDRAWN_BEYOND:
        redrawn = radius > REDRAWN_BEYOND
        radius[redrawn] = (uniforms(int(redrawn.sum())) * REDRAWN_BELOW).log_().mul_(-2.0).sqrt_().float()
    angle = turns.mul_(2.0 * math.pi)
    torch.sin(angle, out=second).mul_(radius)
    radius.mul_(angle.cos_())
    return out
