"""Privacy loss distributions: the tightest valid bound (Koskela et al. 2020, Doroshenko et al. 2022).

The loss of one step is put on a grid, rounded against us, and convolved with itself by FFT. The result is an
upper bound on every grid; a finer one is tighter and dearer. So the grid starts coarse and is refined tenfold as
long as that helps and its size, estimated beforehand, fits the limits on time and memory.

    >>> from dpbnn.privacy.accountants.charge import Charge
    >>> round(account(Charge(sampling_rate=0.01, noise_levels=((1.0, 1000),), delta=1e-5)).epsilon, 4)
    1.8282
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import reduce

import numpy as np
from dp_accounting.pld.pld_pmf import compose_pmfs

from dpbnn.privacy.accountants.charge import Accounting, Charge
from dpbnn.privacy.accountants.dominating_pair import Losses, PureLoss, pairs_for_step

__all__ = ["account", "coarse_epsilon"]

_INTERVALS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
_FIRST_INTERVAL = 1e-3
_ALWAYS_TRIED = 1e-4
# The excess of a grid falls at least tenfold with the next one, so that a last fall of 5 % leaves less than 0.5 %.
_WORTHWHILE_FALL = 0.05
_NEGLIGIBLE_EPSILON = 1e-6
_MOST_COMPONENTS = 2000  # Gaussians in one step's output, many only where a person has very many records

_SMALLEST_NOISE = 1e-100  # below it 1/s^2 overflows
_SHARES_OF_DELTA = (0.5, 0.9, 0.99)

_MOST_LOSS_EVALUATIONS = 1.2e6  # grid points of one step times Gaussians in it, over all noise levels: seconds
_MOST_COMPOSED_POINTS = 2e6  # after composition, over all noise levels: 16 bytes a point in several copies
_MOST_MASS_BY_ROUNDING = 1.0  # after composition; beyond it a finer grid would raise epsilon

# The FFT of a T-fold convolution was measured to be off by up to 2e-17 T in delta; this is set aside for it, T being
# the number of steps and of releases without delta.
_ROUNDING_OF_DELTA = 1e-14
_ROUNDING_OF_DELTA_PER_STEP = 1e-16

Step = tuple[Losses, int]


def account(charge: Charge) -> Accounting:
    """The epsilon by privacy loss distributions, infinite (with the reason) where no grid is affordable.

    Guarantees:
        PLD is never below the exact Gaussian.
        PLD stays valid at small delta and many steps.
        PLD agrees with dp-accounting.
    """
    if charge.delta <= _rounding_of_delta(charge):
        return _no_answer("delta is within the rounding error of so many steps")
    if min(noise for noise, _ in charge.noise_levels) < _SMALLEST_NOISE:
        return _no_answer("there is next to no noise")
    with np.errstate(all="ignore"):  # an overflow gives NaN or infinity, which is looked for below
        return _refine(charge)


def coarse_epsilon(charge: Charge) -> float:
    """As `account`, on the first grid only: a little more than its epsilon for a tenth of the time."""
    with np.errstate(all="ignore"):
        return _refine(charge, finest=_FIRST_INTERVAL).epsilon


def _refine(charge: Charge, finest: float = 0.0) -> Accounting:
    directions = _directions(charge)
    if directions[0][0][0].components > _MOST_COMPONENTS:
        return _no_answer("a person has too many records in a batch")
    affordable = [interval for interval in _INTERVALS if _is_affordable(directions, interval)]
    start = [interval for interval in affordable if interval >= _FIRST_INTERVAL][-1:]
    best = math.inf
    for interval in start + [finer for finer in affordable if finest <= finer < _FIRST_INTERVAL]:
        try:
            epsilon = _epsilon(charge, directions, interval)
        except (ArithmeticError, MemoryError, ValueError):
            break
        if math.isnan(epsilon):
            break
        fall = 1 - epsilon / best if best > 0 else 0.0
        best = min(best, epsilon)
        if best < _NEGLIGIBLE_EPSILON or (interval <= _ALWAYS_TRIED and fall < _WORTHWHILE_FALL):
            break
    if best == math.inf:
        return _no_answer("none is finite on a grid of affordable size")
    is_exact = charge.adjacency != "replace_one" or _replaces_exactly(charge)
    return Accounting(
        best, "pld", "" if is_exact else "replacing a person is charged as removing one and adding another"
    )


def _no_answer(reason: str) -> Accounting:
    return Accounting(math.inf, "pld", f"no PLD figure, since {reason}")


def _replaces_exactly(charge: Charge) -> bool:
    return charge.sampling_rate == 1 or charge.records_per_person == 1


def _rounding_of_delta(charge: Charge) -> float:
    return _ROUNDING_OF_DELTA + _ROUNDING_OF_DELTA_PER_STEP * (charge.steps + len(charge.pure_epsilons))


def _directions(charge: Charge) -> list[list[Step]]:
    """The steps to be composed, once for each direction in which a person can move the output."""
    rate, limit, is_exact = charge.sampling_rate, charge.records_per_person, _replaces_exactly(charge)
    changed, adjacency = (charge.records_changed, charge.adjacency) if is_exact else (limit, "add_or_remove")
    counts = Counter(charge.pure_epsilons)
    pure: list[Step] = [(PureLoss(changed * epsilon), count) for epsilon, count in counts.items()]
    if rate == 1:
        return [[(pairs_for_step(1.0, charge.full_batch_noise, 1, "add_or_remove")[0], 1), *pure]]
    levels = (
        [(pair, steps) for pair in pairs_for_step(rate, noise, limit, adjacency)]
        for noise, steps in charge.noise_levels
    )
    return [[*direction, *pure] for direction in zip(*levels, strict=True)]


def _is_affordable(directions: list[list[Step]], interval: float) -> bool:
    """Whether a grid keeps within the limits; NaN and infinity do not."""
    pairs = [pair for direction in directions for pair, _ in direction]
    if not sum(pair.evaluations(interval) for pair in pairs) <= _MOST_LOSS_EVALUATIONS:
        return False
    return all(
        sum(steps * pair.mass_by_rounding(interval) for pair, steps in direction) <= _MOST_MASS_BY_ROUNDING
        and sum(pair.composed_points(interval, steps) for pair, steps in direction if steps > 1)
        <= _MOST_COMPOSED_POINTS
        for direction in directions
    )


def _epsilon(charge: Charge, directions: list[list[Step]], interval: float) -> float:
    rounding = _rounding_of_delta(charge)

    def profile(direction: list[Step]) -> Callable[[float], float]:
        once = ((pair.loss_distribution(interval), count) for pair, count in direction)
        levels = (losses if count == 1 else losses.self_compose(count) for losses, count in once)
        losses = reduce(lambda first, second: compose_pmfs(first, second, 1e-15), levels)
        return lambda delta: float(losses.get_epsilon_for_delta(delta - rounding)) if delta > rounding else math.inf

    profiles = [profile(direction) for direction in directions]
    if charge.adjacency == "replace_one" and not _replaces_exactly(charge):
        removing, adding = profiles
        return _epsilon_of_two_changes(removing, adding, charge.delta)
    return max(epsilon_at(charge.delta) for epsilon_at in profiles)


def _epsilon_of_two_changes(
    epsilon_of_removing: Callable[[float], float], epsilon_of_adding: Callable[[float], float], delta: float
) -> float:
    """Epsilon for replacing a person: removing one, then adding another.

    For every event, P(D) <= e^u P(D without) + d and P(D without) <= e^v P(D') + d', so that
    P(D) <= e^{u+v} P(D') + d + e^u d'. The best of a few ways to split delta = d + e^u d' is taken.

    Guarantees:
        Two changes are never cheaper than the exact replacement.
    """

    def with_share(share: float) -> float:
        removing = epsilon_of_removing(share * delta)
        return removing + epsilon_of_adding((1 - share) * delta * math.exp(-removing))

    return min(with_share(share) for share in _SHARES_OF_DELTA)
