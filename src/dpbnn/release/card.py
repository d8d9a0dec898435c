"""The DP card: one page about a release, for those who decide whether it may leave.

It is ``card.md`` in the folder of the release. `dpbnn audit FOLDER` attacks the claim, keeps its results there as
``audit.json``, and writes the card again with the lower bound beside the claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

from dpbnn import lint
from dpbnn.privacy.guarantee import PrivacyGuarantee, rounded_up
from dpbnn.privacy.prose import shown

__all__ = ["CARD", "card"]

CARD = "card.md"
LINE = 100
HOW_TO_READ = """\
The first row is the one to quote. An epsilon up to 1 is a strong promise, up to 3 a fair one, above 10 a
weak one. The other epsilons answer other questions: what another way of computing gives, what would hold
if a record were exchanged for another, and what would hold if everybody knew who is in which batch."""
LEVELS = "A level is the noise multiplier of sums, and of everything else epsilon for one record."
FEW = 6
NO_AUDIT = "none yet; `dpbnn audit FOLDER` attacks the claim and adds what it finds"


def card(guarantee: PrivacyGuarantee, settings: Mapping[str, Any], audit: Mapping[str, Any] | None = None) -> str:
    """The page in Markdown; `settings` are the release's, and `audit` is what ``audit.json`` holds."""
    rows = _rows(guarantee, settings) | {"shown by attacks": NO_AUDIT if audit is None else _bound(audit)}
    parts = [
        "# DP card",
        fill(str(guarantee).partition(" It rests on these assumptions")[0], LINE),
        "\n".join(["| what | figure |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]),
        HOW_TO_READ if guarantee.holds else "",
        _spent(settings.get("ledger", ())),
        _listed("Assumptions", guarantee.assumptions),
        _listed("Findings", list(map(str, lint.noted(settings.get("findings", {}))))),
        _listed("Notes", settings.get("warnings", ())),
        *([] if audit is None else [f"## Audit\n\n{fill(audit['in_words'], LINE)}"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(guarantee: PrivacyGuarantee, settings: Mapping[str, Any]) -> dict[str, str]:
    plan = guarantee.plan
    trained = {"method": str(settings.get("method", "not said"))}
    if "predicts" in settings:
        trained = {"predicts": f"{settings['predicts']}, from {', '.join(settings['from_columns'])}"} | trained
    if not guarantee.holds:
        return {"guarantee": "none"} | trained
    without_sampling = rounded_up(replace(plan, batch_size=plan.dataset_size).epsilon(adjacency=guarantee.adjacency))
    is_whole_plan = without_sampling >= guarantee.epsilon  # else the plan is that of one candidate of a search
    by_accountant = (f"{name.upper()} {shown(bound)}" for name, bound in guarantee.epsilon_by_accountant.items())
    return {
        "epsilon, delta": f"{shown(guarantee.epsilon)}, {shown(guarantee.delta)}",
        "who is protected": guarantee.unit,
        "adjacency": guarantee.adjacency.replace("_", " "),
        "epsilon by accountant": ", ".join(by_accountant),
        "epsilon if replaced by another": shown(guarantee.epsilon_replace_one),
        **({"epsilon without amplification by sampling": shown(without_sampling)} if is_whole_plan else {}),
        "sampling": guarantee.sampling,
        "mechanism": guarantee.mechanism,
        "random numbers": guarantee.random_source,
    } | trained


def _spent(ledger: Sequence[Mapping[str, Any]]) -> str:
    """The charges of the ledger as a table; lines that differ by their purpose alone are one."""
    lines: dict[tuple[Any, ...], list[str]] = {}
    for entry in ledger:
        charge = entry["mechanism"], entry["level"], entry["count"], entry["rows_per_person"]
        lines.setdefault(charge, []).append(entry["purpose"].replace("|", "/"))
    if not lines:
        return ""
    head = ["## Ledger\n", "| for | mechanism | level | times | rows of a person |", "| --- | --- | --- | --- | --- |"]
    rows = [
        f"| {_few(purposes)} | {mechanism} | {level:.4g} | {count} | {rows_per_person} |"
        for (mechanism, level, count, rows_per_person), purposes in lines.items()
    ]
    return "\n".join([*head, *rows, "", LEVELS])


def _few(purposes: Sequence[str]) -> str:
    rest = len(purposes) - FEW
    return ", ".join(purposes[:FEW]) + (f" and {rest} more like it, each" if rest > 0 else "")


def _bound(audit: Mapping[str, Any]) -> str:
    bound, share = audit["epsilon_at_least"], f"{100 * audit['confidence']:g} %"
    meaning = "below the claim, as it should be" if bound <= audit["claimed_epsilon"] else "above the claim by chance"
    if audit["alarms"]:
        meaning = "THE CODE BREAKS THE CLAIM"
    unit = audit.get("unit", "one record")
    return f"for {unit}, epsilon at least {bound:.4g} with {share} confidence: {meaning} ({audit['date']})"


def _listed(title: str, texts: Sequence[str]) -> str:
    lines = [fill(text, LINE, initial_indent="- ", subsequent_indent="  ") for text in texts]
    return "\n".join([f"## {title}\n", *lines]) if lines else ""
