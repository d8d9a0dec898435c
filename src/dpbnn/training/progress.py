"""What a run shows: steps, time, epsilon spent and measures on public data; no value without noise."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["show_progress", "tracked"]

MILESTONES = 10
"""How often epsilon is computed along the way; in between, the next milestone's stands, which is never too small."""


@contextmanager
def show_progress(
    plan: PrivacyPlan, steps_done: int, is_shown: bool, num_runs: int = 1
) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, if that is a terminal; with epsilon, if it is that of a single run.

    What is yielded is called after every step, with the number of steps done and the last measure on public data.
    """
    if not is_shown or not sys.stderr.isatty():
        yield lambda steps_done, measure="": None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("training" if num_runs == 1 else f"training {num_runs} runs"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[epsilon]}"),
        progress.TextColumn("{task.fields[measure]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=plan.steps, completed=steps_done, epsilon="", measure="")

        @cache
        def epsilon_at(milestone: int) -> str:
            return f"epsilon at most {plan.epsilon(steps=milestone):.3f}" if plan.is_private else "no privacy"

        def display(steps_done: int, measure: str = "") -> None:
            epsilon = epsilon_at(_next_milestone(steps_done, plan.steps)) if num_runs == 1 else ""
            bar.update(task, completed=steps_done, epsilon=epsilon, measure=measure)

        yield display


def tracked(items: Iterable[Any], description: str, is_shown: bool, total: int | None = None) -> Iterable[Any]:
    """The items; a progress bar on standard error follows them, if that is a terminal."""
    if not is_shown or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description=description, total=total, console=Console(stderr=True))


def _next_milestone(steps_done: int, steps: int) -> int:
    size = max(1, steps // MILESTONES)
    return min(steps, -(-max(1, steps_done) // size) * size)
