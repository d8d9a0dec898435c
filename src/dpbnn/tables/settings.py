"""Settings for a table that nobody has tuned: chosen from public facts alone, each with its reason.

    >>> facts = Facts(rows=32_561, columns=14, classes=2, epsilon=1.0, delta=1e-5)
    >>> chosen = choose(facts)
    >>> chosen.hidden, chosen.plan.steps
    ((32,), 394)

Whatever a user gives stays as given. Nothing here may look at a record: rows, columns, classes and the budget are all
that is known, and all of them are public or declared so.

How they follow. Full-batch or not, T noisy steps of rate eta move a weight by a random walk of standard deviation about

    eta T C / (n mu)        mu: of the Gaussian mechanism that costs the budget, roughly; about epsilon / 5

whatever T and the batch are, as long as the noise multiplier is well above 1. So the batch is the smallest that keeps
it there, C is about the largest gradient that a row can have, T is as large as the rate has to be small, and what is
left is the training time eta T: in proportion to n mu, until there is nothing more to learn. The constants come from
public data sets (docs/tables.md).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpbnn import _validate
from dpbnn.methods.registry import METHODS
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.queries.selection import check_available

__all__ = ["NOISE_LEVEL", "Chosen", "Facts", "choose"]

FEWEST_STEPS, MOST_STEPS = 100, 6000
LEAST_NOISE = 3.0
"""The noise multiplier below which sampling no longer hides much."""
LEAST_BATCH = 512
DROPOUT = 0.05
PRIOR_SCALE = 1.0
FEWEST_PER_COLUMN = 3.0
"""Rows times mu below which little can be learned."""
ROWS_FOR_A_QUANTILE = 200.0
"""Rows times epsilon with which a quantile is right to about one row in a hundred."""
LARGEST_NOISE_SHARE = 0.2
HIDDEN = ((20_000.0, (64,)), (1_000.0, (32,)))
"""Rows times mu from which hidden units pay, and how many."""
CLIP_SHARE = {False: 1.06, True: 0.3}
"""Of the norm of a row with an intercept: for classes, for numbers."""
TIME = {False: (2.0, 5_000.0), True: (5.0, 10_000.0)}
"""Training time over (rows times mu), and the time beyond which `FURTHER_TIME` is enough: for classes, for numbers."""
FURTHER_TIME = 0.2
"""Training time over (rows times mu), beyond that."""
LARGEST_RATE = {False: 16.0, True: 4.0}
"""In units in which a row has norm 1: beyond it steps overshoot."""
CHECKS: Mapping[str, Callable[[str, object], float]] = {
    "learning_rate": _validate.positive,
    "prior_scale": _validate.positive,
    "epochs": _validate.positive,
    "batch_size": _validate.whole_number,
}
"""Of settings that are given, before anything is bought; the plan checks the clip norm."""
NOISE_LEVEL = "noise level of the targets"
"""What `noise_epsilon` buys."""


@dataclass(frozen=True)
class Facts:
    """What is public about a table and what may be spent on it.

    Args:
        rows: the number of records.
        columns: beside the target; a category counts as one.
        classes: of the target; None if it is a number.
        epsilon: the budget.
        delta: its delta.
        method: of `dpbnn.methods.METHODS`.
        max_records_per_person: how many records one person may have.
    """

    rows: int
    columns: int
    classes: int | None
    epsilon: float
    delta: float
    method: str = "sgld"
    max_records_per_person: int = 1

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        _validate.fraction("delta", self.delta)
        _validate.one_of("method", self.method, METHODS)
        _validate.whole_number("max_records_per_person", self.max_records_per_person)

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return self.classes is None


@dataclass(frozen=True)
class Chosen:
    """A way to train, and why; `plan` has the noise that keeps the budget.

    `caution` says where little can be expected. For numbers, `noise_epsilon` of the budget buys the noise level of the
    targets: a quantile of what the network leaves over. `purchases` are the plan's `pure_epsilons` by name.
    """

    method: str
    hidden: tuple[int, ...]
    activation: str
    dropout: float
    learning_rate: float
    prior_scale: float
    plan: PrivacyPlan
    noise_epsilon: float | None
    purchases: Mapping[str, float] = field(default_factory=dict)
    caution: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)


def choose(facts: Facts, given: Mapping[str, Any] | None = None, bounds: Mapping[str, float] | None = None) -> Chosen:
    """Settings for these facts.

    Args:
        facts: rows, columns and budget.
        given: what the user decided, by name; None leaves a setting open.
        bounds: purposes for which bounds are bought, each with its epsilon for one record.

    Guarantees:
        What is chosen depends on public facts alone.
        What is given is kept.
    """
    known = {name: value for name, value in (given or {}).items() if value is not None}
    for name, check in CHECKS.items():
        if name in known:
            check(name, known[name])
    reasons = dict.fromkeys(known, "given")

    def pick(name: str, value: Any, reason: str) -> Any:
        if name in known:
            return known[name]
        reasons[name] = reason
        return value

    mu = facts.epsilon / math.sqrt(2 * (math.log(1 / facts.delta) + facts.epsilon))
    strength = facts.rows * mu / facts.max_records_per_person
    hidden = pick("hidden", *_hidden(facts, strength))
    if isinstance(hidden, str) or not isinstance(hidden, Iterable):
        _validate.refuse("hidden", "a list of widths, such as [64, 64]", hidden)
    widths = tuple(_validate.whole_number("hidden", width) for width in hidden)
    dropout = 0.0
    if METHODS[facts.method].has_dropout:
        dropout = _validate.fraction("dropout", pick("dropout", DROPOUT, "little, as noise regularizes too"))
        if not widths:
            _validate.refuse("hidden", f"one width or more for {facts.method}, which drops units", hidden)
    time, why = _time(facts, strength)
    steps = pick("steps", *_steps(facts, known, mu, time))
    batch_size = pick("batch_size", *_batch_size(facts, mu, steps))
    if batch_size > facts.rows:
        _validate.refuse("batch_size", f"at most the number of rows ({facts.rows})", batch_size)
    row_norm = math.sqrt(facts.columns + 1)
    largest = f"near the largest gradient of a row of {facts.columns} columns"
    clip_norm = pick("clip_norm", CLIP_SHARE[facts.is_regression] * row_norm, largest)
    noise_epsilon = _noise_epsilon(facts) if facts.is_regression else None
    purchases = dict(bounds or {}) | ({} if noise_epsilon is None else {NOISE_LEVEL: noise_epsilon})
    plan = PrivacyPlan.for_budget(
        epsilon=facts.epsilon,
        delta=facts.delta,
        dataset_size=facts.rows,
        batch_size=batch_size,
        steps=steps,
        clip_norm=clip_norm,
        max_records_per_person=facts.max_records_per_person,
        pure_epsilons=tuple(purchases.values()),
    )
    if purchases:
        check_available()
    return Chosen(
        method=facts.method,
        hidden=widths,
        activation="tanh",
        dropout=dropout,
        learning_rate=pick("learning_rate", time / steps, why),
        prior_scale=pick("prior_scale", PRIOR_SCALE, "weak, for columns scaled to -1 to 1"),
        plan=plan,
        noise_epsilon=noise_epsilon,
        purchases=purchases,
        caution=_caution(facts, strength),
        reasons=reasons,
    )


def _caution(facts: Facts, strength: float) -> str:
    if strength >= FEWEST_PER_COLUMN * (facts.columns + 1):
        return ""
    return (
        f"{facts.rows} rows at epsilon {facts.epsilon:g} teach little about {facts.columns} columns: predictions may "
        "be no better than a constant. More rows, a larger epsilon or fewer columns would help."
    )


def _hidden(facts: Facts, strength: float) -> tuple[tuple[int, ...], str]:
    for enough, widths in HIDDEN:
        if strength >= enough:
            return widths, "enough rows and budget"
    if METHODS[facts.method].has_dropout:
        return (32,), "dropout needs units to drop"
    return (), "so few rows at this budget teach a linear model best"


def _steps(facts: Facts, known: Mapping[str, Any], mu: float, time: float) -> tuple[int, str]:
    least = time * (facts.columns + 1) / LARGEST_RATE[facts.is_regression]
    steps = min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(least)))
    if "epochs" not in known:
        return steps, "enough for the rate that they allow"
    batch_size = known.get("batch_size", _batch_size(facts, mu, steps)[0])
    return max(1, round(known["epochs"] * facts.rows / min(batch_size, facts.rows))), "from the epochs given"


def _batch_size(facts: Facts, mu: float, steps: int) -> tuple[int, str]:
    enough = math.ceil(LEAST_NOISE * mu / math.sqrt(steps) * facts.rows)
    if enough >= facts.rows:
        return facts.rows, "all rows, as the budget is large"
    if enough > LEAST_BATCH:
        return enough, f"keeps the noise multiplier near {LEAST_NOISE:g}"
    return min(facts.rows, LEAST_BATCH), f"all rows, or {LEAST_BATCH}: smaller ones gain nothing here"


def _noise_epsilon(facts: Facts) -> float:
    """Enough for a quantile on a grid of a few hundred candidates, and no more of the budget than a fifth."""
    return min(LARGEST_NOISE_SHARE * facts.epsilon, ROWS_FOR_A_QUANTILE / facts.rows) / facts.max_records_per_person


def _time(facts: Facts, strength: float) -> tuple[float, str]:
    """eta T, in units in which a row has norm 1."""
    share, first = TIME[facts.is_regression]
    is_long = share * strength >= first + FURTHER_TIME * strength
    reason = "many rows allow long training" if is_long else "short, for the noise not to add up"
    return min(share * strength, first + FURTHER_TIME * strength) / (facts.columns + 1), reason
