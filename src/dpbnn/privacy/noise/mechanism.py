"""`add_noise`: the one place where private becomes public.

    G = sum_i clip(g_i)  +  s C N(0, I)

Code before it sees private data; code after it is post-processing and is never handed data.
"""

import torch

from dpbnn import _validate
from dpbnn.privacy.noise.source import AddsNoise
from dpbnn.types import ClippedSum, NoisySum

__all__ = ["add_noise"]


def add_noise(clipped: ClippedSum, noise_multiplier: float, source: AddsNoise, step: int) -> NoisySum:
    """Add ``noise_multiplier * sensitivity`` times a standard normal to every number, and take the private sum away.

    The noise is written over the private sum, which is empty afterwards. With a noise multiplier of zero (a run
    without privacy) the sum passes as it is.

    Guarantees:
        The noise's standard deviation is the noise multiplier times the sensitivity, in every parameter.
        The noise is independent between numbers, parameters and steps.
        Noise is drawn and added in float32 or wider.
        The private sum is gone afterwards.
        Names, shapes and types of what is released do not depend on the records.
    """
    _validate.non_negative("noise_multiplier", noise_multiplier)
    gradients = {name: values.contiguous() for name, values in clipped.gradients.items()}
    clipped.gradients.clear()
    for name, values in gradients.items():
        if values.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"gradient '{name}' must be float32 or wider, got {values.dtype}.")
    if noise_multiplier > 0:
        sensitivity = _validate.positive("the sensitivity of a sum that gets noise", clipped.sensitivity)
        sums = [gradients[name] for name in sorted(gradients)]
        std = noise_multiplier * sensitivity
        answer: object = source.add(sums, sensitivity, std, step)  # type: ignore[func-returns-value]  # a source of a user may
        if answer is not None:
            raise TypeError(f"{type(source).__name__}.add must write noisy sums over the exact ones and return None.")
    return NoisySum({name: values.to(clipped.types.get(name, values.dtype)) for name, values in gradients.items()})
