"""Figures as words and tables, the same way in every section."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import dpbnn
from dpbnn.experiments.item import Found

__all__ = ["ACCOUNTANTS", "by_accountant", "figure_of", "number", "paragraph", "private", "spread", "table", "upward"]

ACCOUNTANTS = ("pld", "rdp", "gdp")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraph(text: str) -> str:
    """One line, as Markdown wants it, of text in several."""
    return " ".join(text.split())


def number(value: float | None, decimals: int = 3) -> str:
    """A dash where there is none; one digit of what is huge."""
    return "-" if value is None else f"{value:.{decimals}f}" if abs(value) < 1e4 else f"{value:.0e}"


def spread(values: Sequence[float | None], decimals: int = 3) -> str:
    """The median, with the least and the largest, of the runs that have not diverged; a dash where there are none."""
    known = [value for value in values if value is not None]
    lost = f"{len(values) - len(known)} of {len(values)} diverged" if len(known) < len(values) else ""
    if len(known) < 2:
        return ", ".join(part for part in (number(known[0], decimals) if known else "", lost) if part) or "-"
    middle, least, largest = (number(own, decimals) for own in (statistics.median(known), min(known), max(known)))
    return f"{middle} ({least} to {largest}{f'; {lost}' if lost else ''})"


def figure_of(name: str) -> Callable[[Sequence[Found]], list[float | None]]:
    """Of each run the figure of this name; None where the run has diverged."""
    return lambda runs: [run["figures"] and run["figures"][name] for run in runs]


def by_accountant(plan: dpbnn.PrivacyPlan) -> dict[str, float] | None:
    """Epsilon as each accountant has it, rounded up; that of GDP is an approximation, which can be too small.

    None where there is no privacy.
    """
    if not plan.is_private:
        return None
    return {name: upward(plan.epsilon(accountant=name)) for name in ACCOUNTANTS}


def upward(epsilon: float, decimals: int = 4) -> float:
    """The next number of so few decimals: a guarantee is not rounded down."""
    return math.ceil(epsilon * 10**decimals - 1e-9) / 10**decimals


def private(epsilon: float | None, decimals: int = 4) -> str:
    """An epsilon in words."""
    return number(None if epsilon is None else upward(epsilon, decimals), decimals)
