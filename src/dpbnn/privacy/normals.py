"""Standard normals from random bits, fast in plain torch and true far out into the tails (Box and Muller 1958).

    z = sqrt(-2 log w) (cos a, sin a),     w uniform on (0, 1), a uniform on the circle

Of 64 random bits, 40 make w and 24 the angle a, as fine as float32 tells angles apart. The largest values come from
the smallest w, of which 40 bits know too few: they are drawn again with 53 bits more, so that the normals end beyond 10
standard deviations. An end within reach would be a hole: a larger value would prove that a record was there.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["pairs_of_normals"]

ANGLE_BITS, RADIUS_BITS = 24, 40
REDRAWN_BELOW = 2.0**-24
"""A smaller w, one in 16 million, is drawn again."""


def pairs_of_normals(bits: Tensor, uniforms: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
    """Two independent float32 standard normals from each int64 of random bits.

    `uniforms` gives as many float64 numbers, uniform on (0, 1], as it is asked for.
    """
    w = (bits & (2**RADIUS_BITS - 1)).double().mul_(2.0**-RADIUS_BITS)
    if bits.is_cuda:  # asking whether there are any would make the device wait
        w = torch.where(w < REDRAWN_BELOW, uniforms(len(w)) * REDRAWN_BELOW, w)
    elif w.amin() < REDRAWN_BELOW:
        redrawn = w < REDRAWN_BELOW
        w[redrawn] = uniforms(int(redrawn.sum())) * REDRAWN_BELOW
    radius = w.log_().float().mul_(-2.0).sqrt_()
    angle = (bits >> RADIUS_BITS).float().mul_(math.pi / 2 ** (ANGLE_BITS - 1))
    return torch.cos(angle).mul_(radius), angle.sin_().mul_(radius)
