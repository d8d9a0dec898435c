"""The DP card: one page about a release, for whoever has to decide whether it may leave.

The folder of a release has it as ``card.md``. `dpbnn audit FOLDER` attacks what is claimed, keeps what it found there
as ``audit.json``, and writes the card again with the lower bound beside the claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

from dpbnn import guard
from dpbnn.privacy.guarantee import PrivacyGuarantee, rounded_up
from dpbnn.privacy.prose import shown

__all__ = ["CARD", "card"]

CARD = "card.md"
LINE = 100
NO_AUDIT = "none yet; `dpbnn audit FOLDER` attacks the claim and adds what it finds"


def card(guarantee: PrivacyGuarantee, settings: Mapping[str, Any], audit: Mapping[str, Any] | None = None) -> str:
    """The page in Markdown; `settings` are the release's, and `audit` is what ``audit.json`` holds."""
    rows = _rows(guarantee, settings) | {"shown by attacks": NO_AUDIT if audit is None else _bound(audit)}
    parts = [
        "# DP card",
        fill(str(guarantee).partition(" It rests on these assumptions")[0], LINE),
        "\n".join(["| what | figure |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]),
        _listed("Assumptions", guarantee.assumptions),
        _listed("Findings", list(map(str, guard.noted(settings.get("findings", {}))))),
        _listed("Notes", settings.get("warnings", ())),
        *([] if audit is None else [f"## Audit\n\n{fill(audit['in_words'], LINE)}"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(guarantee: PrivacyGuarantee, settings: Mapping[str, Any]) -> dict[str, str]:
    plan = guarantee.plan
    trained = {"method": str(settings.get("method", "not said"))}
    if not guarantee.holds:
        return {"guarantee": "none"} | trained
    without_sampling = replace(plan, batch_size=plan.dataset_size).epsilon(adjacency=guarantee.adjacency)
    by_accountant = (f"{name.upper()} {shown(own)}" for name, own in guarantee.epsilon_by_accountant.items())
    return {
        "epsilon, delta": f"{shown(guarantee.epsilon)}, {guarantee.delta:g}",
        "who is protected": guarantee.unit,
        "adjacency": guarantee.adjacency.replace("_", " "),
        "epsilon by accountant": ", ".join(by_accountant),
        "epsilon if replaced by another": shown(guarantee.epsilon_replace_one),
        "epsilon without amplification by sampling": shown(rounded_up(without_sampling)),
        "sampling": guarantee.sampling,
        "mechanism": guarantee.mechanism,
        "random numbers": guarantee.random_source,
    } | trained


def _bound(audit: Mapping[str, Any]) -> str:
    share = f"{100 * audit['confidence']:g} %"
    verdict = "; THE CLAIM IS IN DOUBT" if audit["alarms"] else ""
    return f"epsilon at least {audit['epsilon_at_least']:.4g} with {share} confidence ({audit['date']}){verdict}"


def _listed(title: str, texts: Sequence[str]) -> str:
    lines = [fill(text, LINE, initial_indent="- ", subsequent_indent="  ") for text in texts]
    return "\n".join([f"## {title}\n", *lines]) if lines else ""
