"""A value that may change over a run, fixed in advance: a number, or runs of (value, steps) that follow one another.

>>> value_at(((0.5, 100), (0.1, 50)), 120)
0.1
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, groupby, pairwise, repeat
from operator import itemgetter

from dpbnn._validate import positive, refuse, whole_number

__all__ = ["Runs", "Schedule", "as_schedule", "by_step", "check_length", "combined", "levels", "runs_of", "value_at"]

Runs = tuple[tuple[float, int], ...]
Schedule = float | Sequence[tuple[float, int]]

MOST_RUNS = 64
"""Every distinct level of the noise costs the accountant a composition of its own."""
DIGITS = 12


def as_schedule(name: str, value: object, level: Callable[[str, object], float] = positive) -> float | Runs:
    """A number, or at most 64 runs of (value, steps); every value is checked by `level`."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return level(name, value)
    if not 1 <= len(value) <= MOST_RUNS:
        refuse(f"runs of {name}", f"1 to {MOST_RUNS} pairs of (value, steps)", len(value))
    return tuple(_run(name, run, level) for run in value)


def _run(name: str, run: object, level: Callable[[str, object], float]) -> tuple[float, int]:
    if not isinstance(run, Sequence) or isinstance(run, str) or len(run) != 2:
        refuse(f"a run of {name}", "a pair (value, steps)", run)
    return level(name, run[0]), whole_number(f"steps of a run of {name}", run[1])


def check_length(name: str, schedule: Schedule, steps: int) -> None:
    """Refuse runs that do not last as long as the plan."""
    total = sum(length for _, length in runs_of(schedule, steps))
    if total != steps:
        refuse(f"steps in the runs of {name}", f"{steps} in all, as the plan's steps", total)


def runs_of(schedule: Schedule, steps: int) -> Runs:
    """The runs; a number is one run of all steps."""
    return ((float(schedule), steps),) if isinstance(schedule, (int, float)) else tuple(schedule)


def levels(schedule: Schedule, steps: int) -> Runs:
    """The distinct values over the first `steps` steps, in order of appearance, with their numbers of steps."""
    counts: Counter[float] = Counter()
    for value, length in runs_of(schedule, steps):
        counts[value] += min(length, steps - counts.total())
    return tuple((+counts).items())


def value_at(schedule: Schedule, step: int) -> float:
    """The value in a step, counted from 0."""
    if isinstance(schedule, (int, float)):
        return float(schedule)
    left = step
    for value, length in schedule:
        if left < length:
            return value
        left -= length
    raise IndexError(f"step {step} lies beyond the schedule")


def by_step(schedule: Schedule, steps: int) -> list[float]:
    """The value in every step."""
    return list(chain.from_iterable(repeat(value, length) for value, length in runs_of(schedule, steps)))


def combined(function: Callable[..., float], steps: int, *schedules: Schedule) -> float | Runs:
    """``function(value, value, ...)`` in every step, as a schedule; results that only rounding tells apart are one."""
    edges = {0, steps}
    for schedule in schedules:
        edges.update(accumulate(length for _, length in runs_of(schedule, steps)))
    pieces = (
        (float(f"{function(*(value_at(schedule, start) for schedule in schedules)):.{DIGITS}g}"), end - start)
        for start, end in pairwise(sorted(edges))
    )
    merged = tuple((value, sum(length for _, length in same)) for value, same in groupby(pieces, itemgetter(0)))
    return merged[0][0] if len(merged) == 1 else merged
