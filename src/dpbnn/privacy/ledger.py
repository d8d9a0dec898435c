"""The ledger: every release is charged, none beyond the plan, and a repeated one only if it is not the same.

After an interruption some steps are taken again. A step that comes out bit for bit as it did before has revealed
nothing new. One that does not (another machine, another version) must not be used: with the same noise on another sum,
the two together would reveal the difference. The run then goes on with a fresh key, and is charged again.
"""

from dataclasses import dataclass, field

import torch

from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import by_step
from dpbnn.types import NoisySum

__all__ = ["Charge", "Ledger", "fingerprint"]

Charge = tuple[int, int | None]
"""A step and the fingerprint of what it released; None where its noise came from another key than the run's."""


def fingerprint(noisy: NoisySum) -> int:
    """A number that tells two releases apart: the sum of b (b + odd) modulo 2^32 over the bits b of their numbers.

    The product scatters the smallest change of any number over all 32 bits, so that changes do not cancel in the sum.
    Only the order of a parameter's numbers does not matter.
    """
    total = 0
    for position, values in enumerate(noisy.gradients.values(), start=1):
        bits = values.contiguous().view(torch.int32)
        total += position * int((bits * (bits + 0x3779B97F)).sum(dtype=torch.int64))
    return total % 2**64


@dataclass
class Ledger:
    """What has been released so far under a plan.

    Guarantees:
        No noise level is ever charged for more steps than the plan has at that level.
        A step that is repeated bit for bit is charged once.
    """

    plan: PrivacyPlan
    charges: list[Charge] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = dict(self.plan.noise_levels)
        self._level_at = by_step(self.plan.noise_multiplier, self.plan.steps)
        self._last_of_step: dict[int, int] = {}
        earlier, self.charges = self.charges, []
        for charge in earlier:
            self.replay(*charge)

    def replay(self, step: int, mark: int | None) -> None:
        """Charge what a journal holds; a line of it for which the plan has no room was never used (see there)."""
        if self.can_afford(step):
            self.enter(step, mark)

    def holds(self, step: int, mark: int) -> bool:
        """Whether this very release of this step has been charged."""
        return self._last_of_step.get(step) == mark

    def forget_marks(self) -> None:
        """A fresh key: what was charged stays charged, but no step can come out as it did before."""
        self._last_of_step.clear()

    def has_charged(self, step: int) -> bool:
        """Whether some release of this step has been charged."""
        return step in self._last_of_step

    def can_afford(self, step: int) -> bool:
        """Whether the plan has room for one more release at this step's noise."""
        return self._left[self.plan.noise_at(step)] > 0

    def enter(self, step: int, mark: int | None) -> None:
        """Charge a release, before anybody sees it."""
        is_known = 0 <= step < len(self._level_at)
        level = self._level_at[step] if is_known else self.plan.noise_at(step)  # which refuses it
        if self._left[level] <= 0:
            raise RuntimeError(f"step {step} is beyond the plan; this is a bug, and the release must not be used.")
        self._left[level] -= 1
        if mark is not None:
            self._last_of_step[step] = mark
        self.charges.append((step, mark))
