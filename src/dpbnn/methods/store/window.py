"""Which iterates of a chain a store takes: after the burn-in, one in every `thin`, and always the last.

>>> [step for step in range(10) if Window.over(10, burn_in=None, thin=None, at_most=3).holds(step)]
[5, 7, 9]
"""

from dataclasses import dataclass

from dpbnn import _validate
from dpbnn.errors import DpbnnError

__all__ = ["Window", "check_window"]

FEWEST = 2


def check_window(burn_in: int | None, thin: int | None) -> None:
    """Refuse what cannot be a window of any run; None leaves the choice to `Window.over`."""
    if burn_in is not None:
        _validate.whole_number("burn_in", burn_in, at_least=0)
    if thin is not None:
        _validate.whole_number("thin", thin)


@dataclass(frozen=True)
class Window:
    """The steps from `burn_in` to `steps`, every `thin`-th, counted back from the last."""

    steps: int
    burn_in: int
    thin: int

    @staticmethod
    def over(steps: int, burn_in: int | None, thin: int | None, at_most: int) -> "Window":
        """A window within a run: the second half, thinned to `at_most`, unless said otherwise."""
        if burn_in is not None and burn_in >= steps:
            _validate.refuse("burn_in", f"below the plan's {steps} steps", burn_in)
        first = steps // 2 if burn_in is None else burn_in
        window = Window(steps, first, -(-(steps - first) // max(1, at_most)) if thin is None else thin)
        if window.count < FEWEST:
            raise DpbnnError(
                f"At least {FEWEST} samples must be kept, got {window.count} from {steps} steps with burn_in {first} "
                f"and thin {window.thin}, and room for {at_most}; take more steps, lower burn_in or thin, or make room "
                "(KeepSamples with path or dtype, or KeepSummary)."
            )
        if window.count > at_most:
            raise DpbnnError(
                f"thin must leave at most {at_most} samples, got {window.count} with thin {window.thin}; "
                f"use thin {-(-(steps - first) // at_most)}, or raise max_samples or max_bytes."
            )
        return window

    @property
    def count(self) -> int:
        """How many steps it holds."""
        return (self.steps - 1 - self.burn_in) // self.thin + 1

    def holds(self, step: int) -> bool:
        """Whether the iterate after this step, counted from 0, belongs to it."""
        return step >= self.burn_in and (self.steps - 1 - step) % self.thin == 0
