"""Standard normals from random bits, true out into the tails and near zero (Box and Muller 1958).

    z = sqrt(2 E) (cos a, sin a),     E = -log w exponential, w uniform on (0, 1), a uniform on the circle

Of 64 random bits, 32 make w and 32 the angle a. Why the result is a normal to float32, and has no end within reach:

* w is one of 2^32 - 2^21 equidistant numbers between 2^-12 and 1 - 2^-12, its logarithm is taken in float64. Where the
  radius is largest, at 4.1, neighbours are 2.3e-7 apart, half a float32 step; in the middle, 4e-10.
* Beyond, with probability 2^-12 each, all of E is drawn anew with 53 bits or more: in the tail as 12 log 2 plus an
  exponential (which forgets how far it has come), so that normals end beyond 10 standard deviations; near zero as
  -log(1 - u / 4096). An end within reach would be a hole: a larger value would prove that a record was there.
* Angles are rounded to float32, steps of at most 2.4e-7. A normal is the product of a radius and a cosine, each with
  its own steps, so that no lattice is left that all normals lie on.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Normals"]

END_BITS = 12
FIRST_END = 2**32 - 2 ** (33 - END_BITS)
"""The 2^21 largest integers stand for the two ends of (0, 1), odd ones for the tail."""


class Normals:
    """Turns bits into normals in memory of its own, which is used again: fresh memory would cost more than drawing."""

    def __init__(self, most_pairs: int) -> None:
        self._wide = np.empty(most_pairs)
        self._radius, self._angle = np.empty((2, most_pairs), np.float32)
        self._out = np.empty(2 * most_pairs, np.float32)

    def from_bits(
        self, bits: npt.NDArray[np.uint64], generator: np.random.Generator, scale: float = 1.0
    ) -> npt.NDArray[Any]:
        """Two independent normals, times `scale`, from each number, valid until the next call.

        `generator` draws the ends anew.
        """
        pairs = len(bits)
        for_radius, for_angle = bits.view(np.uint32)[:pairs], bits.view(np.int32)[pairs:]
        wide, radius, angle = self._wide[:pairs], self._radius[:pairs], self._angle[:pairs]
        first, second = self._out[:pairs], self._out[pairs : 2 * pairs]
        np.add(for_radius, 2.0 ** (32 - END_BITS) + 0.5, out=wide)
        np.log(wide, out=wide)
        np.subtract(32 * math.log(2), wide, out=radius, casting="same_kind")
        ends = np.flatnonzero(for_radius >= FIRST_END)
        radius[ends] = _ends(for_radius[ends] % 2 == 1, generator)
        np.sqrt(radius, out=radius)
        radius *= np.float32(math.sqrt(2) * scale)
        np.copyto(angle, for_angle, casting="unsafe")
        angle *= np.float32(math.pi / 2**31)
        np.cos(angle, out=first)
        first *= radius
        np.sin(angle, out=second)
        second *= radius
        return self._out[: 2 * pairs]


def _ends(in_tail: npt.NDArray[np.bool_], generator: np.random.Generator) -> npt.NDArray[Any]:
    """E given that w lies in one of the ends."""
    tail = END_BITS * math.log(2) + generator.standard_exponential(len(in_tail))
    centre = -np.log1p(-(2.0**-END_BITS) * (1.0 - generator.random(len(in_tail))))
    return np.where(in_tail, tail, centre)
