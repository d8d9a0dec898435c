"""Privacy noise seen as Langevin noise: the temperature at which a noisy gradient method samples.

    w <- w - eta ((n/B) G + grad r(w)),    G = clipped sum + s C N(0, I)

has noise N(0, 2 eta tau I) if

    s = sqrt(2 tau / eta) B / (n C),    tau = eta (s n C / B)^2 / 2

and is DP-SGD with the learning rate n eta. (The paper's Theorem 1 has sqrt(eta) where 1 / sqrt(eta) belongs; its own
figures follow from the formula above, at tau = 1/2.)

    >>> round(noise_multiplier(5e-6, 0.5, clip_norm=1.5, dataset_size=60_000, batch_size=256), 6)
    1.272074
"""

import math

__all__ = ["noise_multiplier", "temperature"]


def noise_multiplier(
    learning_rate: float, temperature: float, *, clip_norm: float, dataset_size: int, batch_size: int
) -> float:
    """``s = sqrt(2 tau / eta) B / (n C)``"""
    return math.sqrt(2 * temperature / learning_rate) * batch_size / (dataset_size * clip_norm)


def temperature(
    learning_rate: float, noise_multiplier: float, *, clip_norm: float, dataset_size: int, batch_size: int
) -> float:
    """``tau = eta (s n C / B)^2 / 2``"""
    return learning_rate * (noise_multiplier * dataset_size * clip_norm / batch_size) ** 2 / 2
