"""The best of several candidates, chosen privately.

>>> from dpbnn.privacy.purchases import Purchases
>>> scores = [3.0, 90.0, 4.0]
>>> Purchases({"the best": 5.0}).buy("the best", lambda permit: noisy_maximum(scores, permit))
1
"""

from collections.abc import Sequence

from dpbnn.errors import DpbnnError
from dpbnn.privacy.purchases import Permit

__all__ = ["noisy_maximum"]


def noisy_maximum(scores: Sequence[float], permit: Permit) -> int:
    """The place of the largest score, with noise; each record must add between 0 and 1 to every score.

    Guarantees:
        Adding or removing one record changes no probability by more than the factor e^epsilon of the permit.
    """
    try:
        import opendp.prelude as dp
    except ModuleNotFoundError as error:
        raise DpbnnError(
            "Choosing privately needs OpenDP, which is not installed: pip install 'dpbnn[sklearn]'."
        ) from error
    dp.enable_features("contrib")
    epsilon = permit.spend("noisy maximum")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float, monotonic=True)
    scale = 1 / epsilon
    while (chosen := dp.m.make_noisy_max(*space, dp.max_divergence(), scale)).map(1.0) > epsilon:
        scale *= 1 + 1e-9
    return int(chosen([float(score) for score in scores]))
