"""What an accountant is asked, and what it answers.

>>> charge = Charge(sampling_rate=0.01, noise_levels=((1.0, 1000),), delta=1e-5)
>>> charge.steps
1000
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpbnn._validate import one_of
from dpbnn.errors import DpbnnError

__all__ = ["ADJACENCIES", "Accountant", "Accounting", "Charge"]

ADJACENCIES = ("add_or_remove", "zero_out", "replace_one")
"""How two neighbouring data sets differ: one person more or less; one person's records blanked out, their number being
public, which costs the same; or one person's records exchanged."""


@dataclass(frozen=True)
class Charge:
    """A run of Poisson-sampled Gaussian releases, and the delta at which its epsilon is wanted.

    Each of `steps` releases adds noise of standard deviation s C to a sum of vectors of norm at most C, in which every
    record takes part with probability `sampling_rate`. The pairs (s, steps) are `noise_levels`. A person has at most
    `records_per_person` records. `pure_epsilons` are those of further releases from the same records, each private by
    itself without a delta for one record that is added or removed; nothing else is known of them.

    A record that is blanked out adds zero to every sum, as if it were not there: "zero_out" becomes "add_or_remove".
    """

    sampling_rate: float
    noise_levels: tuple[tuple[float, int], ...]
    delta: float
    records_per_person: int = 1
    adjacency: str = "add_or_remove"
    pure_epsilons: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if one_of("adjacency", self.adjacency, ADJACENCIES) == "zero_out":
            object.__setattr__(self, "adjacency", "add_or_remove")

    @property
    def steps(self) -> int:
        """The number of noisy sums."""
        return sum(steps for _, steps in self.noise_levels)

    @property
    def records_changed(self) -> int:
        """How many records are added or removed between two neighbours; replacing does both."""
        return self.records_per_person * (2 if self.adjacency == "replace_one" else 1)

    @property
    def full_batch_noise(self) -> float:
        """The noise multiplier of the one Gaussian release that equals all steps of full batches.

        T Gaussian releases of sensitivity m and noise s are one of sensitivity 1 and noise s / (m sqrt(T)).
        """
        moved = self.records_changed
        return 1 / math.sqrt(sum(steps * (moved / noise) * (moved / noise) for noise, steps in self.noise_levels))


@dataclass(frozen=True)
class Accounting:
    """An epsilon, the name of its accountant, and a remark about the figure or an empty text."""

    epsilon: float
    accountant: str
    remark: str = ""


@dataclass(frozen=True)
class Accountant:
    """One way to compute epsilon, and which charges it covers.

    Args:
        name: by which it is chosen, such as "pld".
        title: what a guarantee calls it, such as "privacy loss distributions (PLD)".
        compute: the epsilon of a charge; infinite, with the reason as a remark, where it has none.
        is_bound: whether epsilon is never too small: no other may stand in a guarantee.
        is_quick: whether it answers at once. Others are not asked where a quick one is above 1000.
        adjacencies: of the charges that it covers.
        covers_several_records: whether it covers people with several records.
        covers_pure_releases: whether it covers `pure_epsilons`.

    Guarantees:
        An accountant is not asked about charges that it does not cover.
    """

    name: str
    title: str
    compute: Callable[[Charge], Accounting]
    is_bound: bool
    is_quick: bool = False
    adjacencies: tuple[str, ...] = ("add_or_remove",)
    covers_several_records: bool = False
    covers_pure_releases: bool = False

    def account(self, charge: Charge) -> Accounting:
        """The epsilon of a charge. What is not covered costs infinity by a bound; an approximation refuses it."""
        covered = {
            f"adjacency {charge.adjacency!r}": charge.adjacency in self.adjacencies,
            "several records of a person": charge.records_per_person == 1 or self.covers_several_records,
            "releases without delta beside the steps": not charge.pure_epsilons or self.covers_pure_releases,
        }
        uncovered = ", ".join(part for part, is_covered in covered.items() if not is_covered)
        if not uncovered:
            return self.compute(charge)
        if not self.is_bound:
            raise DpbnnError(
                f"The accountant {self.name!r} must not be used for {uncovered}: it is not derived for it."
            )
        return Accounting(math.inf, self.name, f"no figure by {self.name.upper()}, which does not cover {uncovered}")
