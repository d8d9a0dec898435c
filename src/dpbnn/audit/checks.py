"""Checks: what holds for correct code, and how likely the observations would then be."""

from dataclasses import dataclass

__all__ = ["ALARM", "Check", "Checked"]

ALARM = 1e-8
"""How often a check may fail for correct code."""


@dataclass(frozen=True)
class Check:
    """What must hold, with the p-value of the observations; it is 0 or 1 where nothing is random.

    Guarantees:
        Code that is right fails a check at most once in ``1 / ALARM``.
    """

    name: str
    p_value: float

    @property
    def holds(self) -> bool:
        """Whether the observations are no less likely than `ALARM`."""
        return self.p_value >= ALARM


class Checked:
    """The result of an attack."""

    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether all checks hold, so that nothing speaks against the claim."""
        return all(check.holds for check in self.checks)
