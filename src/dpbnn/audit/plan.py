"""All attacks on one plan, and their results: as data, in words, and as a picture."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dpbnn._warn import muted
from dpbnn.audit.attack import Target
from dpbnn.audit.cases import counted, targets_of, variations_of
from dpbnn.audit.checks import Checked
from dpbnn.audit.claim import levels_of
from dpbnn.audit.coverage import Coverage, coverage_of
from dpbnn.audit.mechanism import MechanismAudit, audit_mechanism
from dpbnn.audit.membership import MembershipAudit, audit_membership
from dpbnn.audit.one_run import OneRunAudit, audit_method
from dpbnn.audit.randomness import RandomnessAudit, audit_randomness
from dpbnn.audit.rounding import RoundingAudit, audit_rounding
from dpbnn.audit.sampling import SamplingAudit, audit_sampling
from dpbnn.methods import METHODS, SGD
from dpbnn.models.likelihoods import Categorical
from dpbnn.models.networks import MLP
from dpbnn.plots.style import BLUE, plain
from dpbnn.privacy.guarantee import rounded_up
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.fit import fit
from dpbnn.training.progress import tracked

__all__ = ["Audit", "audit_plan"]

OBSERVATIONS, OF_VARIATIONS = {True: 100_000, False: 400_000}, {True: 20_000, False: 50_000}
CANARIES = {True: 400, False: 2000}
MEMBERS = 300
LEFT_OUT_BY_QUICK = "convolutional, recurrent and frozen layers (leave out --quick)"


@dataclass(frozen=True)
class Audit:
    """What all attacks on a plan show.

    Args:
        claimed_epsilon: the plan's, as are `delta`, `unit` (whom it protects) and the settings that follow.
        confidence: of each bound.
        is_quick: whether models and settings were left out.
        mechanism: attacks on single steps under this very plan, by engine and model.
        variations: attacks on the same code with other settings, each with a claim of its own.
        one_run: attacks on whole runs, by method.
    """

    claimed_epsilon: float
    delta: float
    unit: str
    clipping: str
    levels: int
    rows_per_person: int
    confidence: float
    is_quick: bool
    mechanism: Mapping[str, MechanismAudit]
    variations: Mapping[str, MechanismAudit]
    rounding: RoundingAudit
    randomness: RandomnessAudit
    sampling: SamplingAudit
    one_run: Mapping[str, OneRunAudit]
    membership: MembershipAudit

    @property
    def epsilon(self) -> float:
        """The largest lower bound of all attacks on this very plan."""
        return max(attack.epsilon for attack in self.mechanism.values())

    @property
    def coverage(self) -> Coverage:
        """Which settings attacks on single steps had, and which they had not."""
        return coverage_of(self._attacks, self.rounding.records, [LEFT_OUT_BY_QUICK] if self.is_quick else [])

    @property
    def _attacks(self) -> list[MechanismAudit]:
        """All attacks on single steps."""
        return [*self.mechanism.values(), *self.variations.values()]

    @property
    def alarms(self) -> list[str]:
        """The checks that failed: each speaks against the claim."""
        attacks: dict[str, Checked] = {**self.mechanism, **self.variations}
        attacks |= {"rounding": self.rounding, "randomness": self.randomness, "sampling": self.sampling}
        checks = {name: attack.checks for name, attack in attacks.items()}
        checks |= {f"one run by {name}": (run.check,) for name, run in self.one_run.items()}
        return [f"{name}: failed: {check.name}" for name, some in checks.items() for check in some if not check.holds]

    def to_json(self) -> str:
        """All figures; null stands for infinity."""
        summary = {"epsilon_at_least": self.epsilon, "alarms": self.alarms, "coverage": asdict(self.coverage)}
        figures = json.loads(json.dumps(summary | asdict(self)), parse_constant=lambda _: None)
        return json.dumps(figures, indent=2)

    def __str__(self) -> str:
        numbers = sum(attack.observations for attack in self._attacks)
        method, run = max(self.one_run.items(), key=lambda item: item[1].epsilon)
        name, signal = max(self.membership.signals.items(), key=lambda item: abs(item[1].auc - 0.5))
        shares = [100 * attack.epsilon / attack.claimed_epsilon for attack in self.variations.values()]
        conclusion = "Nothing speaks against the claim."
        if alarms := self.alarms:
            conclusion = f"THE CODE BREAKS THE CLAIM; do not rely on its epsilon. {'; '.join(alarms)}."
        return (
            f"The claim: epsilon {rounded_up(self.claimed_epsilon):g} at delta {self.delta:g} for {self.unit}. It was "
            f"attacked with synthetic records and networks, and with the plan's own {self.clipping} clipping, "
            f"{counted(self.levels, 'level')} of noise and clip norm, and {counted(self.rows_per_person, 'row')} per "
            f"person. Canaries, records made to be noticed, went through {len(self.mechanism)} ways of clipping and "
            f"through the noise, and {numbers:,} numbers of what was released were looked at: with "
            f"{100 * self.confidence:g} % confidence, a run like this has an epsilon of at least {self.epsilon:.4g} "
            f"for {self.unit}. With other settings, in {len(shares)} ways, attacks show {min(shares):.0f} to "
            f"{max(shares):.0f} % of what is claimed for those. Who is in a batch was counted in "
            f"{self.sampling.batches:,} of them, and {self.randomness.streams:,} streams of random numbers were "
            f"compared. In one whole run at epsilon {run.claimed_epsilon:.3g} by each method, the best attack on a "
            f"release ({method}) shows an epsilon of {run.epsilon:.3g}. By predictions, members were told from others "
            f"with an AUC of {signal.auc:.3f} ({name}; near 0.5 is chance). {self.coverage} {conclusion}"
        )

    def draw(self, path: str | Path) -> None:
        """Draw the claim, and the epsilon that each attack shows."""
        from matplotlib.figure import Figure

        steps = {name: attack.epsilon for name, attack in self.mechanism.items()}
        shares = {name: attack.epsilon / attack.claimed_epsilon for name, attack in self.variations.items()}
        runs = {name: run.epsilon for name, run in self.one_run.items()}
        claim_of_runs = next(iter(self.one_run.values())).claimed_epsilon
        epsilon = f"epsilon, at least, with {100 * self.confidence:g} % confidence"
        panels: list[tuple[str, dict[str, float], float, str]] = [
            ("Attacks on single steps: no bar should get beyond the claim", steps, self.claimed_epsilon, epsilon),
            ("The same code with other settings, each with a claim of its own", shares, 1.0, "share of the claim"),
            ("Attacks on the release of a whole run", runs, claim_of_runs, epsilon),
        ]
        heights = [len(bars) for _, bars, _, _ in panels]
        figure = Figure(figsize=(8, 3.2 + 0.34 * sum(heights)), layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), 1, height_ratios=heights), panels, strict=True):
            _draw_panel(axes, *panel)
        figure.savefig(path, dpi=150)


def _draw_panel(axes: Any, title: str, bars: Mapping[str, float], claim: float, label: str) -> None:
    names = [f"{name}: {length:.3g}" for name, length in bars.items()]
    axes.barh(names, list(bars.values()), color=BLUE, height=0.6)
    axes.axvline(claim, color="#222222", linewidth=1.5, linestyle="--")
    axes.annotate(f" claimed: {rounded_up(claim):g}", (claim, 0), xycoords=("data", "axes fraction"), va="bottom")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(label)
    axes.set_xlim(0, 1.3 * max(claim, *bars.values()))
    axes.invert_yaxis()
    plain(axes)


def audit_plan(plan: PrivacyPlan, *, quick: bool = False, confidence: float = 0.95, progress: bool = False) -> Audit:
    """Attack what a plan claims, on synthetic models and records.

    Guarantees:
        A plan is attacked as it is: with its clipping style, levels and rows per person.
        Pairs of settings that did not meet are counted and named.
    """
    targets, variations = targets_of(plan, quick), variations_of(plan, quick)
    plan_of_runs, confidence_of_runs = _plan_of_whole_run(CANARIES[quick]), 1 - (1 - confidence) / len(METHODS)
    rows = plan.max_records_per_person
    with muted(""):  # warnings of models that are slow on purpose, and of chains that are short
        return Audit(
            claimed_epsilon=plan.epsilon(),
            delta=plan.delta,
            unit="one record" if rows == 1 else f"one person with at most {rows} records",
            clipping=plan.clipping,
            levels=len(levels_of(plan)),
            rows_per_person=rows,
            confidence=confidence,
            is_quick=quick,
            mechanism=_attacked(targets, OBSERVATIONS[quick], confidence, "attacking single steps", progress),
            variations=_attacked(variations, OF_VARIATIONS[quick], confidence, "with other settings", progress),
            rounding=audit_rounding(),
            randomness=audit_randomness(),
            sampling=audit_sampling(plan.sampling_rate),
            one_run={
                name: audit_method(name, plan_of_runs, CANARIES[quick], confidence_of_runs)
                for name in tracked(METHODS, "attacking whole runs", progress)
            },
            membership=_membership(),
        )


def _attacked(
    targets: Mapping[str, Target], observations: int, confidence: float, title: str, progress: bool
) -> dict[str, MechanismAudit]:
    """Attack single steps of each target, with the confidence for all targets together."""
    confidence = 1 - (1 - confidence) / len(targets)
    return {
        name: audit_mechanism(**vars(targets[name]), observations=observations, confidence=confidence)
        for name in tracked(targets, title, progress)
    }


def _plan_of_whole_run(records: int) -> PrivacyPlan:
    """A plan whose epsilon and delta make it almost impossible that all guesses are right."""
    return PrivacyPlan.for_budget(
        epsilon=1.0, delta=1e-11, dataset_size=records, batch_size=records, steps=50, clip_norm=1.0
    )


def _membership() -> MembershipAudit:
    """Attack a network that could remember every record."""
    x, y = torch.randn(2 * MEMBERS, 40), torch.randint(2, (2 * MEMBERS,))
    members, others = (x[:MEMBERS], y[:MEMBERS]), (x[MEMBERS:], y[MEMBERS:])
    how: Any = {"method": SGD(1.0), "plan": _plan_of_whole_run(MEMBERS), "likelihood": Categorical(), "progress": False}
    return audit_membership(fit(MLP(40, [64], 2), *members, **how), members, others)
