"""What an accountant is asked, and what it answers.

>>> charge = Charge(sampling_rate=0.01, noise_levels=((1.0, 1000),), delta=1e-5)
>>> charge.steps
1000
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ADJACENCIES", "Accountant", "Accounting", "Charge"]

ADJACENCIES = ("add_or_remove", "zero_out", "replace_one")
"""How two neighbouring data sets differ: one person more or less; one person's records blanked out, their number being
public, which costs the same; or one person's records exchanged."""


@dataclass(frozen=True)
class Charge:
    """A run of Poisson-sampled Gaussian releases, and the delta at which its epsilon is wanted.

    Each of `steps` releases adds noise of standard deviation s C to a sum of vectors of norm at most C, in
    which every record takes part with probability `sampling_rate`. The pairs (s, steps) are `noise_levels`.
    `pure_epsilons` are those of further releases from the same records, each private by itself without a delta
    for one record that is added or removed; nothing else is known of them.
    """

    sampling_rate: float
    noise_levels: tuple[tuple[float, int], ...]
    delta: float
    records_per_person: int = 1
    adjacency: str = "add_or_remove"
    pure_epsilons: tuple[float, ...] = ()

    @property
    def steps(self) -> int:
        """The number of releases."""
        return sum(steps for _, steps in self.noise_levels)

    @property
    def full_batch_noise(self) -> float:
        """The one Gaussian release that equals all of them where every record takes part in every step.

        T Gaussian releases of sensitivity m and noise s are one of sensitivity 1 and noise s / (m sqrt(T)).
        A person moves a full-batch sum by m = k, or by m = 2k where the k records are replaced.
        """
        shift = self.records_changed
        return 1 / math.sqrt(sum(steps * (shift / noise) * (shift / noise) for noise, steps in self.noise_levels))

    @property
    def records_changed(self) -> int:
        """How many records are added or removed between two neighbours."""
        return self.records_per_person * (2 if self.adjacency == "replace_one" else 1)


@dataclass(frozen=True)
class Accounting:
    """An epsilon, the accountant that it comes from, and what should be known about it (often nothing)."""

    epsilon: float
    accountant: str
    remark: str = ""


@dataclass(frozen=True)
class Accountant:
    """One way to compute epsilon. Only one with `is_bound` may stand in a guarantee."""

    name: str
    is_bound: bool
    account: Callable[[Charge], Accounting]
