"""What lint rules look at, what they are, and what they find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpbnn.errors import DpbnnError
from dpbnn.methods import Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["RULES", "Finding", "Rule", "Subject", "by_severity", "inspect", "noted", "refuse", "rule", "with_findings"]

SEVERITIES = ("hole", "weak", "care")


@dataclass
class Subject:
    """All that decides what a run promises; what is not known is left out.

    Args:
        plan: what is charged.
        model: the network.
        likelihood: of its outputs.
        method: how it is trained.
        x: private inputs, as `fit` takes them; rules look at their shape, type and identity alone.
        y: private targets, likewise.
        public_data: (X, y) that are declared public.
        people: the person of each row.
        unused: names of columns that are not learned from.
        preprocessing: a pipeline or transformers of scikit-learn that come before.
        accountant: the one whose epsilon is quoted.
        unsafe_seed: as for `fit`.
        unsafe_diagnostics: as for `fit`.
    """

    plan: PrivacyPlan
    model: nn.Module | None = None
    likelihood: Likelihood | None = None
    method: Method[Any] | None = None
    x: Any = None
    y: Any = None
    public_data: tuple[Any, Any] | None = None
    people: Any = None
    unused: Sequence[str] = ()
    preprocessing: Any = None
    accountant: str | None = None
    unsafe_seed: int | None = None
    unsafe_diagnostics: bool = False


@dataclass(frozen=True)
class Finding:
    """Something about a set-up that should be known before it is used."""

    name: str
    severity: str
    found: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}: {self.found}. {self.why} {self.cure}"


@dataclass(frozen=True)
class Rule:
    """One thing to look at; `look` says in words what is wrong, '' if nothing is."""

    name: str
    severity: str
    why: str
    cure: str
    look: Callable[[Subject], str]

    def finding(self, found: str) -> Finding:
        """The finding of these words."""
        return Finding(self.name, self.severity, found, self.why, self.cure)


RULES: dict[str, Rule] = {}
"""All rules by name."""


def rule(severity: str, why: str, cure: str) -> Callable[[Callable[[Subject], str]], Callable[[Subject], str]]:
    """Enter a function into `RULES` under its name."""

    def enter(look: Callable[[Subject], str]) -> Callable[[Subject], str]:
        name = look.__name__.strip("_").replace("_", "-")
        RULES[name] = Rule(name, severity, why, cure, look)
        return look

    return enter


def by_severity() -> list[Rule]:
    """All rules, those about holes first."""
    return sorted(RULES.values(), key=lambda rule: SEVERITIES.index(rule.severity))


def inspect(subject: Subject) -> list[Finding]:
    """The findings of all rules, holes first."""
    return noted({rule.name: found for rule in by_severity() if (found := rule.look(subject))})


def noted(found: Mapping[str, str]) -> list[Finding]:
    """Findings from the words of each rule, as settings keep them; rules that are no longer known are left out."""
    return [rule.finding(found[rule.name]) for rule in by_severity() if rule.name in found]


def with_findings(settings: Mapping[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """A release's settings with the words of these findings, and of those that are noted in them."""
    found = {finding.name: finding.found for finding in findings} | dict(settings.get("findings", {}))
    return {**settings, "findings": found} if found else dict(settings)


def refuse(findings: Sequence[Finding], name: str) -> None:
    """Raise where the rule of this name has a finding."""
    for finding in findings:
        if finding.name == name:
            raise DpbnnError(f"{finding.found}. {finding.why} {finding.cure}")
