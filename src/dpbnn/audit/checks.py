"""Something that must be so of code that is right, and how likely what was seen would then be."""

from dataclasses import dataclass

__all__ = ["ALARM", "Check"]

ALARM = 1e-8
"""How often a check of code that is right may fail."""


@dataclass(frozen=True)
class Check:
    """What must be so; the p-value is that of what was seen, and 0 or 1 where there is nothing random about it.

    Guarantees:
        Code that is right fails a check at most once in ``1 / ALARM``.
    """

    name: str
    p_value: float

    @property
    def holds(self) -> bool:
        """Whether what was seen is no less likely than `ALARM`."""
        return self.p_value >= ALARM
