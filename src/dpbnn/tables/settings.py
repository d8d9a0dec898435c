"""Settings for a table that nobody has tuned: chosen from public facts alone, each with its reason.

    >>> facts = Facts(rows=32_561, columns=14, features=110, outputs=2, epsilon=1.0, delta=1e-5)
    >>> chosen = choose(facts)
    >>> chosen.hidden, chosen.plan.steps
    ((32,), 394)

Whatever a user gives stays as given. Nothing here may look at a record: rows, columns, classes and the budget are all
that is known, and all of them are public or declared so.

How they follow. Full-batch or not, T noisy steps of rate eta move a weight by a random walk of standard deviation about

    eta T C / (n mu)        mu: the Gaussian mechanism that costs the budget, about epsilon / 5

whatever T and the batch are, as long as the noise multiplier is well above 1. So the batch is the smallest that keeps
it there, C is about the largest gradient that a row can have, T is as large as the rate has to be small, and what is
left is the training time eta T: in proportion to n mu, until there is nothing more to learn. The constants come from
public data sets (docs/tables.md).
"""

import math
from collections.abc import Mapping
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
"""Rows times epsilon that find one to about one row in a hundred."""
LARGEST_NOISE_SHARE = 0.2
HIDDEN = ((20_000.0, (64,)), (1_000.0, (32,)))
"""Rows times mu from which hidden units pay, and how many."""
CLIP_SHARE = {False: 1.06, True: 0.3}
"""Of the norm of a row with an intercept: for classes, for numbers."""
TIME = {False: (2.0, 5_000.0), True: (5.0, 10_000.0)}
"""For each row times mu, and how much of it before more pays less."""
FURTHER_TIME = 0.2
"""For each row times mu, beyond that."""
LARGEST_RATE = {False: 16.0, True: 4.0}
"""In units in which a row has norm 1: beyond it steps overshoot."""
NOISE_LEVEL = "noise level of the targets"
"""What `noise_epsilon` buys."""


@dataclass(frozen=True)
class Facts:
    """What is public about a table and what may be spent on it.

    Args:
        rows: the number of records.
        columns: that were given; a category counts as one.
        features: that the network sees; a category has one for each of its values.
        outputs: classes, or 1 for a number.
        epsilon: the budget.
        delta: its delta.
        is_regression: whether the target is a number.
        method: of `dpbnn.methods.METHODS`.
        max_records_per_person: how many records one person may have.
        purchases: what else is bought, such as bounds, each with its epsilon for one record.
    """

    rows: int
    columns: int
    features: int
    outputs: int
    epsilon: float
    delta: float
    is_regression: bool = False
    method: str = "sgld"
    max_records_per_person: int = 1
    purchases: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        _validate.fraction("delta", self.delta)
        _validate.one_of("method", self.method, METHODS)
        _validate.whole_number("max_records_per_person", self.max_records_per_person)


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


def choose(facts: Facts, given: Mapping[str, Any] | None = None) -> Chosen:
    """Settings for these facts; `given` has what the user decided, by name, and None for nothing.

    Guarantees:
        What is chosen depends on public facts alone.
        What is given is kept.
    """
    known = {name: value for name, value in (given or {}).items() if value is not None}
    for name in ("learning_rate", "prior_scale"):
        if name in known:
            _validate.positive(name, known[name])
    reasons = dict.fromkeys(known, "given")

    def pick(name: str, value: Any, reason: str) -> Any:
        if name in known:
            return known[name]
        reasons[name] = reason
        return value

    mu = _mu(facts)
    strength = facts.rows * mu / facts.max_records_per_person
    hidden = pick("hidden", *_hidden(facts, strength))
    hidden = tuple(_validate.whole_number("hidden", width) for width in hidden)
    time, why = _time(facts, strength)
    steps = _steps(facts, known, pick, time)
    batch_size = pick("batch_size", *_batch_size(facts, mu, steps))
    if batch_size > facts.rows:
        _validate.refuse("batch_size", f"at most the number of rows ({facts.rows})", batch_size)
    clip_norm = pick("clip_norm", _clip_norm(facts), f"near the largest gradient of a row of {facts.columns} columns")
    noise_epsilon = _noise_epsilon(facts) if facts.is_regression else None
    purchases = {**facts.purchases, **({} if noise_epsilon is None else {NOISE_LEVEL: noise_epsilon})}
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
        hidden=hidden,
        activation="tanh",
        dropout=pick("dropout", DROPOUT, "little, as noise regularizes too")
        if METHODS[facts.method].has_dropout
        else 0.0,
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


def _mu(facts: Facts) -> float:
    """Of the Gaussian mechanism that costs the budget, roughly: it steers settings, not the noise."""
    return facts.epsilon / math.sqrt(2 * (math.log(1 / facts.delta) + facts.epsilon))


def _hidden(facts: Facts, strength: float) -> tuple[tuple[int, ...], str]:
    for enough, widths in HIDDEN:
        if strength >= enough:
            return widths, "enough rows and budget"
    if METHODS[facts.method].has_dropout:
        return (32,), "dropout needs units to drop"
    return (), "so few rows at this budget teach a linear model best"


def _steps(facts: Facts, known: Mapping[str, Any], pick: Any, time: float) -> int:
    least = time * (facts.columns + 1) / LARGEST_RATE[facts.is_regression]
    chosen = min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(least)))
    if "epochs" not in known:
        return int(pick("steps", chosen, "enough for the rate that they allow"))
    epochs = _validate.positive("epochs", known["epochs"])
    size = known.get("batch_size") or _batch_size(facts, _mu(facts), chosen)[0]
    return max(1, round(epochs * facts.rows / min(size, facts.rows)))


def _batch_size(facts: Facts, mu: float, steps: int) -> tuple[int, str]:
    enough = math.ceil(LEAST_NOISE * mu / math.sqrt(steps) * facts.rows)
    if enough >= facts.rows:
        return facts.rows, "all rows, as the budget is large"
    if enough > LEAST_BATCH:
        return enough, f"keeps the noise multiplier near {LEAST_NOISE:g}"
    return min(facts.rows, LEAST_BATCH), f"all rows, or {LEAST_BATCH}: smaller ones gain nothing here"


def _clip_norm(facts: Facts) -> float:
    return CLIP_SHARE[facts.is_regression] * math.sqrt(facts.columns + 1)


def _noise_epsilon(facts: Facts) -> float:
    """Enough for a quantile on a grid of a few hundred candidates, and no more of the budget than a fifth."""
    return min(LARGEST_NOISE_SHARE * facts.epsilon, ROWS_FOR_A_QUANTILE / facts.rows) / facts.max_records_per_person


def _time(facts: Facts, strength: float) -> tuple[float, str]:
    """eta T, in units in which a row has norm 1."""
    share, first = TIME[facts.is_regression]
    is_long = share * strength >= first + FURTHER_TIME * strength
    reason = "many rows allow long training" if is_long else "short, for the noise not to add up"
    return min(share * strength, first + FURTHER_TIME * strength) / (facts.columns + 1), reason
