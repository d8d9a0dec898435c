"""Figures as words and tables, the same way in every section."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import dpbnn
from dpbnn.experiments.item import Results
from dpbnn.experiments.settings import METHODS, NETWORKS

__all__ = [
    "ACCOUNTANTS",
    "METHOD",
    "NETWORK",
    "WAYS",
    "Column",
    "by_accountant",
    "by_network",
    "epsilon_text",
    "in_three_ways",
    "markdown",
    "number",
    "rounded_up",
    "spread",
    "table",
    "table_of",
]

ACCOUNTANTS = ("pld", "rdp", "gdp")
WAYS = {"private": "private, paper's settings", "best": "private, best settings", "not_private": "not private"}
Column = tuple[str, Callable[[Any], str]]
"""A column of a table: its heading, and a function from a row to its cell."""


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, from cells."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, ["---"] * len(headings), *lines])


def table_of(rows: Iterable[Any], *columns: Column) -> str:
    """A Markdown table with a line for each row of results."""
    return table([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


METHOD: Column = "method", lambda row: METHODS[row["method"]]
NETWORK: Column = "network", lambda row: NETWORKS[row["network"]]


def in_three_ways(headings: Mapping[str, str]) -> list[Column]:
    """A column for each way and figure, of rows that have them under "ours"."""

    def column(way: str, name: str) -> Column:
        return f"{WAYS[way]}, {headings[name]}", lambda row: spread(row["ours"][way][name])

    return [column(way, name) for way, name in product(WAYS, headings)]


def by_network(rows: Sequence[Results]) -> dict[str, list[Results]]:
    """The rows of each network, by its name, without networks that have none."""
    groups = {name: [row for row in rows if row["network"] == network] for network, name in NETWORKS.items()}
    return {name: group for name, group in groups.items() if group}


def markdown(*parts: str) -> str:
    """A section of the page: tables as they are, and each part of prose in one line."""
    return "\n\n".join(part if part.startswith("|") else " ".join(part.split()) for part in parts)


def number(value: float | None, decimals: int = 3) -> str:
    """The number as text: a dash for None, and one digit if it is huge."""
    return "-" if value is None else f"{value:.{decimals}f}" if abs(value) < 1e4 else f"{value:.0e}"


def spread(values: Sequence[float | None], decimals: int = 3) -> str:
    """The median, with the least and the largest, of the runs that have not diverged; a dash where there are none."""
    known = [value for value in values if value is not None]
    diverged = f"{len(values) - len(known)} of {len(values)} diverged" if len(known) < len(values) else ""
    if len(known) < 2:
        return ", ".join(part for part in (number(known[0], decimals) if known else "", diverged) if part) or "-"
    middle, least, largest = (number(value, decimals) for value in (statistics.median(known), min(known), max(known)))
    return f"{middle} ({least} to {largest}{f'; {diverged}' if diverged else ''})"


def by_accountant(plan: dpbnn.PrivacyPlan) -> dict[str, float] | None:
    """Epsilon by each accountant, rounded up; None without privacy. GDP is an approximation, which can be too small."""
    if not plan.is_private:
        return None
    return {name: rounded_up(plan.epsilon(accountant=name)) for name in ACCOUNTANTS}


def rounded_up(epsilon: float, decimals: int = 4) -> float:
    """The next larger number of so many decimals: a guarantee is not rounded down."""
    return math.ceil(epsilon * 10**decimals - 1e-9) / 10**decimals


def epsilon_text(epsilon: float | None, decimals: int = 4) -> str:
    """An epsilon as text, rounded up."""
    return number(None if epsilon is None else rounded_up(epsilon, decimals), decimals)
