"""All attacks on one claim, and what they found: as data, in words, and as a picture."""

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.audit.mechanism import MechanismAudit, audit_mechanism
from dpbnn.audit.membership import MembershipAudit, audit_membership
from dpbnn.audit.one_run import OneRunAudit, audit_method
from dpbnn.audit.sampling import SamplingAudit, audit_sampling
from dpbnn.execution import Execution
from dpbnn.likelihoods import Categorical, HomoscedasticGaussian, Likelihood
from dpbnn.methods import BBP, SGD
from dpbnn.networks import CNN, MLP
from dpbnn.plots.style import BLUE, plain
from dpbnn.privacy.guarantee import rounded_up
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.progress import tracked
from dpbnn.training import fit
from dpbnn.types import DpbnnWarning

__all__ = ["Audit", "audit_plan"]

METHODS = ("sgd", "sgld", "bbp", "mc_dropout")
OBSERVATIONS = {True: 100_000, False: 400_000}
CANARIES = {True: 400, False: 2000}
MEMBERS = 300


@dataclass(frozen=True)
class Audit:
    """What all attacks on a plan found.

    Args:
        claimed_epsilon: by the plan.
        confidence: of each bound.
        mechanism: of single steps, by engine and model.
        sampling: of batches.
        one_run: of whole runs, by method.
        membership: of a release's predictions.
    """

    claimed_epsilon: float
    delta: float
    confidence: float
    mechanism: Mapping[str, MechanismAudit]
    sampling: SamplingAudit
    one_run: Mapping[str, OneRunAudit]
    membership: MembershipAudit

    @property
    def epsilon(self) -> float:
        """The largest lower bound of all attacks on this very plan."""
        return max(own.epsilon for own in self.mechanism.values())

    @property
    def alarms(self) -> list[str]:
        """What speaks against the claim."""
        parts: list[tuple[str, Any]] = [*self.mechanism.items(), ("sampling", self.sampling)]
        failed = [f"{name}: not so that {check.name}" for name, own in parts for check in own.checks if not check.holds]
        beyond = [
            f"one run by {name}: not so that {own.check.name}"
            for name, own in self.one_run.items()
            if not own.check.holds
        ]
        return failed + beyond

    def to_json(self) -> str:
        """All figures."""
        found = {"epsilon_at_least": self.epsilon, "alarms": self.alarms, **asdict(self)}
        return json.dumps(_finite(found), indent=2)

    def __str__(self) -> str:
        seen = sum(own.observations for own in self.mechanism.values())
        best = max(self.one_run, key=lambda name: self.one_run[name].epsilon)
        signal = max(self.membership.signals.items(), key=lambda item: abs(item[1].auc - 0.5))
        verdict = (
            "Nothing speaks against the claim."
            if not self.alarms
            else f"THE CLAIM IS IN DOUBT: {'; '.join(self.alarms)}."
        )
        whole = self.one_run[best]
        return (
            f"The claim: epsilon {rounded_up(self.claimed_epsilon):g} at delta {self.delta:g}. It was attacked with "
            f"networks and records made up for that. Canaries, records made to be noticed, went through "
            f"{len(self.mechanism)} ways of clipping and through the noise, and {seen:,} numbers of what was released "
            f"were looked at: with {100 * self.confidence:g} % confidence, such a run has an epsilon of at least "
            f"{self.epsilon:.4g} for one record. Who is in a batch was counted in {self.sampling.batches:,} of them. "
            f"In one whole run at epsilon {whole.claimed_epsilon:.3g} by each method, the best attack on a release "
            f"({best}) shows an epsilon of {whole.epsilon:.3g}. By predictions, members were told from others with an "
            f"AUC of {signal[1].auc:.3f} ({signal[0]}; near 0.5 is chance). {verdict}"
        )

    def draw(self, path: str | Path) -> None:
        """The claim, and what each attack shows of it."""
        from matplotlib.figure import Figure

        shown = {name: own.epsilon for name, own in self.mechanism.items()}
        figure = Figure(figsize=(8, 2.2 + 0.34 * (len(shown) + len(self.one_run))), layout="constrained")
        steps, runs = figure.subplots(2, 1, height_ratios=[len(shown), len(self.one_run)])
        for axes, bars, claim, title in (
            (steps, shown, self.claimed_epsilon, "Attacks on single steps: no bar should get beyond the claim"),
            (
                runs,
                {name: own.epsilon for name, own in self.one_run.items()},
                next(iter(self.one_run.values())).claimed_epsilon,
                "Attacks on the release of a whole run",
            ),
        ):
            names = [f"{name}: {found:.3g}" for name, found in bars.items()]
            axes.barh(names, list(bars.values()), color=BLUE, height=0.6)
            axes.axvline(claim, color="#222222", linewidth=1.5, linestyle="--")
            axes.annotate(
                f" claimed: {rounded_up(claim):g}", (claim, 0), xycoords=("data", "axes fraction"), va="bottom"
            )
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel(f"epsilon, at least, with {100 * self.confidence:g} % confidence")
            axes.set_xlim(0, 1.3 * max(claim, *bars.values()))
            axes.invert_yaxis()
            plain(axes)
        figure.savefig(path, dpi=150)


def audit_plan(plan: PrivacyPlan, *, quick: bool = False, confidence: float = 0.95, progress: bool = False) -> Audit:
    """Attack what a plan claims, with models and records of our own. No data is read."""
    cases = list(_cases(quick))
    each: Any = {"observations": OBSERVATIONS[quick], "confidence": 1 - (1 - confidence) / len(cases)}
    runs, of_each_run = _of_one_run(CANARIES[quick]), 1 - (1 - confidence) / len(METHODS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DpbnnWarning)  # of models that are slow on purpose, and chains that are short
        return Audit(
            claimed_epsilon=plan.epsilon(),
            delta=plan.delta,
            confidence=confidence,
            mechanism={
                name: audit_mechanism(model, likelihood, records[0], records[1], plan, **how, **each)
                for name, model, likelihood, records, how in tracked(cases, "attacking single steps", progress)
            },
            sampling=audit_sampling(plan.sampling_rate),
            one_run={
                name: audit_method(name, runs, CANARIES[quick], of_each_run)
                for name in tracked(METHODS, "attacking whole runs", progress)
            },
            membership=_membership(),
        )


class _Bare(nn.Module):
    """Parameters outside of any layer, for which gradients are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.level = nn.Parameter(0.1 * torch.randn(6, 16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) @ self.slopes + self.level


class _Recurrent(nn.Module):
    """Which only a loop over records differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def _cases(quick: bool) -> Iterator[tuple[str, nn.Module, Likelihood, tuple[Tensor, Tensor], Any]]:
    """All engines, layers of all kinds, and steps in small parts; on a GPU recorded steps besides."""
    labels, numbers = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1)
    rows = torch.zeros(0, 6)
    plain: dict[str, Any] = {}
    small: dict[str, Any] = {"execution": Execution(micro_batch_size=8)}
    yield "book-keeping, MLP", MLP(6, [16], 3), Categorical(), (rows, labels), plain
    yield "written out, bare parameters", _Bare(), Categorical(), (rows, labels), plain
    yield "micro-batches, learned noise", MLP(6, [16], 1), HomoscedasticGaussian(), (rows, numbers), small
    if torch.cuda.is_available():
        yield "recorded steps on a GPU, MLP", MLP(6, [16], 3).cuda(), Categorical(), (rows, labels), plain
    if not quick:
        joint = {"method": BBP(1.0, form="joint", num_draws=2)}
        yield "several draws, joint BBP", MLP(6, [16], 3), Categorical(), (rows, labels), joint
        yield "book-keeping, CNN", CNN(), Categorical(), (torch.zeros(0, 1, 28, 28), labels), plain
        yield "book-keeping, wide", MLP(700, [800], 3), Categorical(), (torch.zeros(0, 700), labels), plain
        yield "one by one, GRU", _Recurrent(), Categorical(), (torch.zeros(0, 4, 3), labels), plain
        frozen = nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
        yield "book-keeping, layer norm on a frozen layer", frozen, Categorical(), (rows, labels), plain


def _of_one_run(records: int) -> PrivacyPlan:
    """A run at an epsilon and a delta at which guesses that are all right would be as good as impossible."""
    return PrivacyPlan.for_budget(
        epsilon=1.0, delta=1e-11, dataset_size=records, batch_size=records, steps=50, clip_norm=1.0
    )


def _membership() -> MembershipAudit:
    """Of a network that could remember every record."""
    x, y = torch.randn(2 * MEMBERS, 40), torch.randint(2, (2 * MEMBERS,))
    release = fit(
        MLP(40, [64], 2),
        x[:MEMBERS],
        y[:MEMBERS],
        method=SGD(1.0),
        plan=_of_one_run(MEMBERS),
        likelihood=Categorical(),
        progress=False,
    )
    return audit_membership(release, (x[:MEMBERS], y[:MEMBERS]), (x[MEMBERS:], y[MEMBERS:]))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
