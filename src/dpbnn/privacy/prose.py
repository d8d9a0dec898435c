"""A guarantee in words that a data protection officer can read, without losing what makes it precise.

Each function takes a `PrivacyGuarantee`, whose module imports this one.
"""

import math
from typing import Any

from dpbnn.privacy.accountants import ACCOUNTANTS

__all__ = ["cautions", "describe", "shown"]

_WEAK_EPSILON = 10.0

_ADJACENCY = {
    "add_or_remove": "is added or removed (or blanked out, the data set size being public)",
    "zero_out": "is there or blanked out, the number of records being public",
    "replace_one": "is replaced by another",
}


def describe(guarantee: Any) -> str:
    """One paragraph: the promise, its meaning, how it was computed and its assumptions."""
    if not guarantee.holds:
        return _no_guarantee(guarantee)
    known = ACCOUNTANTS.get(guarantee.accountant)
    accountant = f"the accountant {guarantee.accountant!r}" if known is None else known.title
    sentences = (
        f"This release is differentially private with {_figures(guarantee)} for {guarantee.unit}.",
        _meaning(guarantee),
        *cautions(guarantee),
        f"It covers {guarantee.released}.",
        _if_replaced(guarantee),
        f"The figure is an upper bound, computed by {accountant} and rounded up"
        + (f" ({guarantee.remark})." if guarantee.remark else "."),
        f"How it was done: {guarantee.mechanism}; sampling: {guarantee.sampling}; random numbers from "
        f"{guarantee.random_source}.",
        f"It rests on these assumptions: {'; '.join(guarantee.assumptions)}.",
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _figures(guarantee: Any) -> str:
    return f"epsilon = {shown(guarantee.epsilon)} and delta = {shown(guarantee.delta)}"


def _no_guarantee(guarantee: Any) -> str:
    is_private = guarantee.plan.is_private
    reasons = "; ".join([*([] if is_private else ["no noise was added"]), *guarantee.voided_by])
    otherwise = f" Otherwise it would have had {_figures(guarantee)}." if is_private else ""
    return (
        f"There is no privacy guarantee: {reasons}.{otherwise} Treat this release as if it contained the training "
        "data itself."
    )


def _if_replaced(guarantee: Any) -> str:
    if guarantee.adjacency == "replace_one":
        return ""
    one = guarantee.plan.max_records_per_person == 1
    replaced = "the record were replaced by another" if one else "the person's records were replaced by others"
    return f"If {replaced} instead, epsilon would be {shown(guarantee.epsilon_replace_one)}."


def _meaning(guarantee: Any) -> str:
    change = f"whether {guarantee.unit} {_ADJACENCY[guarantee.adjacency]}"
    if guarantee.epsilon > 700:
        return f"It bounds by how much anything that can be observed in the release depends on {change}."
    factor = math.exp(guarantee.epsilon)
    rounded_up = f"{math.ceil(factor * 100) / 100:.2f}" if factor < 1000 else f"{factor * 1.05:.1e}"
    return (
        f"Nothing that can be observed in the release is more than {rounded_up} times as likely, or as unlikely, "
        f"depending on {change}; up to a probability of {shown(guarantee.delta)}, this bound can fail."
    )


def cautions(guarantee: Any) -> list[str]:
    """A sentence for each figure that promises little."""
    sentences = []
    if guarantee.epsilon > _WEAK_EPSILON:
        sentences.append(f"An epsilon above {_WEAK_EPSILON:g} is a weak promise.")
    if guarantee.delta * guarantee.plan.dataset_size >= 1:
        sentences.append(
            f"Delta is at least 1/{guarantee.plan.dataset_size}, one over the data set size, and too large: "
            "publishing one record in full, chosen at random, would already meet it."
        )
    return sentences


def shown(number: float) -> str:
    """An epsilon or delta with all of its digits: fewer could round down."""
    return repr(float(number)).removesuffix(".0") if math.isfinite(number) else "infinite"
