"""The best of several candidates, chosen privately; and helpers for mechanisms of OpenDP.

>>> from dpbnn.privacy.purchases import Purchases
>>> scores = [3.0, 90.0, 4.0]
>>> Purchases({"the best": 5.0}).buy("the best", lambda permit: noisy_maximum(scores, permit))
1
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from dpbnn.errors import DpbnnError
from dpbnn.privacy.purchases import Permit

__all__ = ["check_available", "noisy_maximum", "opendp", "within"]


def noisy_maximum(scores: Sequence[float], permit: Permit) -> int:
    """The index of the largest score, with noise; each record must add between 0 and 1 to every score.

    Guarantees:
        Adding or removing one record changes no probability by more than the factor e^epsilon of the permit.
    """
    dp, epsilon = opendp(), permit.spend("noisy maximum")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float, monotonic=True)
    chosen = within(lambda scale: dp.m.make_noisy_max(*space, dp.max_divergence(), scale), 1 / epsilon, 1.0, epsilon)
    return int(chosen([float(score) for score in scores]))


def within(make: Callable[[float], Any], scale: float, distance: float, epsilon: float) -> Any:
    """The mechanism of the least scale whose cost, with rounding, is at most epsilon at this distance."""
    while (made := make(scale)).map(distance) > epsilon:
        scale *= 1 + 1e-9
    return made


def check_available() -> None:
    """Refuse a run that needs OpenDP and does not have it, before anything is spent."""
    if find_spec("opendp") is None:
        raise DpbnnError(
            "Buying bounds or noise levels from the data, or choosing privately, needs OpenDP, which is not installed: "
            "pip install 'dpbnn[sklearn]' or 'dpbnn[tables]'."
        )


def opendp() -> Any:
    """OpenDP, with the mechanisms that are used here."""
    check_available()
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp
