"""Standard normals from random bits, fast in plain torch and true far out into the tails (Box and Muller 1958).

    z = sqrt(-2 log w) (cos a, sin a),     w uniform on (0, 1), a uniform on the circle

Of 64 random bits, 40 make w and 24 the angle a, as fine as float32 tells angles apart. The largest values come from
the smallest w, of which 40 bits know too few: w below 2^-21 is drawn again with 53 bits more, so that the normals end
beyond 10 standard deviations. An end within reach would be a hole: a larger value would prove that a record was there.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Normals"]

ANGLE_BITS, RADIUS_BITS = 24, 40
REDRAWN_BELOW = 2.0**-21
REDRAWN_BEYOND = math.sqrt(-2.0 * math.log(REDRAWN_BELOW))
"""The radius, 5.40, that belongs to it; up to there, steps of 2^-40 in w are finer than float32."""


class Normals:
    """Turns bits into normals in memory of its own, which is used again: fresh memory would cost more than drawing.

    `uniforms` gives as many float64 numbers, uniform on (0, 1], as it is asked for.
    """

    def __init__(self, most_pairs: int, uniforms: Callable[[int], Tensor], device: torch.device) -> None:
        self._uniforms = uniforms
        self._w = torch.empty(most_pairs, dtype=torch.float64, device=device)
        self._angle = torch.empty(most_pairs, device=device)
        self._out = torch.empty(2 * most_pairs, device=device)

    def from_bits(self, bits: Tensor) -> Tensor:
        """Two independent float32 normals from each int64, valid until the next call; `bits` is overwritten."""
        pairs = len(bits)
        w, angle, out = self._w[:pairs], self._angle[:pairs], self._out[: 2 * pairs]
        first, second = out.chunk(2)
        angle_bits = torch.bitwise_right_shift(bits, RADIUS_BITS, out=w.view(torch.int64))
        angle.copy_(angle_bits).mul_(math.pi / 2 ** (ANGLE_BITS - 1))
        w.copy_(bits.bitwise_and_(2**RADIUS_BITS - 1)).mul_(2.0**-RADIUS_BITS)
        if w.is_cuda:  # asking whether there are any to be drawn again would make the device wait
            w = torch.where(w < REDRAWN_BELOW, self._uniforms(pairs) * REDRAWN_BELOW, w)
        radius = first.copy_(w.log_()).mul_(-2.0).sqrt_()
        if not w.is_cuda and radius.amax() > REDRAWN_BEYOND:
            redrawn = (radius > REDRAWN_BEYOND).nonzero().squeeze(1)
            radius[redrawn] = (self._uniforms(len(redrawn)) * REDRAWN_BELOW).log_().mul_(-2.0).sqrt_().float()
        torch.sin(angle, out=second).mul_(radius)
        radius.mul_(angle.cos_())
        return out
