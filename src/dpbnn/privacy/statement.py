"""What `dpbnn plan` says about settings: every figure as plain data, a small table of them, and one sentence."""

import json
import math
from collections.abc import Collection
from fractions import Fraction
from typing import Any

from dpbnn._validate import positive, refuse, whole_number
from dpbnn.errors import DpbnnError
from dpbnn.files.json_values import or_null, unless_null
from dpbnn.privacy.accountants import ACCOUNTANTS
from dpbnn.privacy.guarantee import PrivacyGuarantee, rounded_up
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.prose import cautions, shown
from dpbnn.privacy.settings import Settings

__all__ = ["number_of_steps", "print_table", "statement_of"]


def number_of_steps(steps: int | None, epochs: float | None, dataset_size: int, batch_size: int) -> int:
    """The steps given, or floor(epochs n / B), which never runs longer than what was asked for."""
    if (steps is None) == (epochs is None):
        raise DpbnnError(f"steps or epochs must be given, got {'neither' if steps is None else 'both'}.")
    if steps is not None:
        return whole_number("steps", steps)
    passes = Fraction(repr(positive("epochs", epochs)))
    number = math.floor(passes * whole_number("dataset_size", dataset_size) / whole_number("batch_size", batch_size))
    return number if number >= 1 else refuse("epochs", "enough for one step", epochs)


def statement_of(method: str, settings: Settings, assumed: Collection[str]) -> dict[str, Any]:
    """All figures by name. Those under "epsilon" are as computed; "reported_epsilon" is the tightest bound, rounded up.

    `assumed` names the settings that were not given and do not follow from others.
    """
    plan = settings.plan
    guarantee = PrivacyGuarantee.for_plan(plan)
    return {
        "method": method,
        "dataset_size": plan.dataset_size,
        "batch_size": plan.batch_size,
        "steps": plan.steps,
        "clip_norm": plan.clip_norm_at(0),
        "noise_multiplier": plan.noise_at(0),
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
        "delta": plan.delta,
        "epsilon": {name: or_null(plan.epsilon(name)) for name in ACCOUNTANTS},
        "gdp_is_approximation": True,
        "reported_epsilon": or_null(guarantee.epsilon),
        "accountant": guarantee.accountant,
        "adjacency": guarantee.adjacency,
        "epsilon_replace_one": or_null(guarantee.epsilon_replace_one),
        "unit": guarantee.unit,
        "clipping": plan.clipping,
        "max_records_per_person": plan.max_records_per_person,
        "notes": _notes(plan, guarantee, assumed),
        "plan": json.loads(plan.to_json()),
    }


def print_table(statement: dict[str, Any]) -> None:
    """Print a table of the figures, bounds rounded up, and the sentence."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Privacy plan for {statement['method']}", show_header=False)
    rows: dict[str, Any] = {"data set size, batch size": f"{statement['dataset_size']}, {statement['batch_size']}"}
    for name in ("steps", "clip_norm", "noise_multiplier", "learning_rate", "temperature"):
        rows[name.replace("_", " ")] = statement[name]
    rows["delta"] = shown(statement["delta"])
    for name, epsilon in statement["epsilon"].items():
        is_bound = ACCOUNTANTS[name].is_bound
        kind, figure = ("bound", _bound(epsilon)) if is_bound else ("approximation", epsilon)
        rows[f"epsilon by {name.upper()} ({kind})"] = figure
    rows["epsilon if replaced (bound)"] = _bound(statement["epsilon_replace_one"])
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    sentence = (
        f"Training releases epsilon = {_bound(statement['reported_epsilon'])} at delta = {rows['delta']} for adding "
        f"or removing {statement['unit']}, by {statement['accountant'].upper()}."
    )
    console = Console(highlight=False)
    console.print(table)
    console.print(" ".join([sentence, *statement["notes"]]), soft_wrap=True)


def _bound(epsilon: float | None) -> str:
    return shown(rounded_up(unless_null(epsilon, math.inf)))


def _notes(plan: PrivacyPlan, guarantee: PrivacyGuarantee, assumed: Collection[str]) -> list[str]:
    notes = {
        "delta": f"Delta was not given and chosen as {plan.delta:g}, the largest power of ten below "
        f"1/{plan.dataset_size}.",
        "clip_norm": "The clip norm was not given and taken as 1; epsilon does not depend on it.",
    }
    remarks = [f"About epsilon: {guarantee.remark}."] if guarantee.remark else []
    return [*(note for name, note in notes.items() if name in assumed), *cautions(guarantee), *remarks]
