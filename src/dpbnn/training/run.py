"""A run before its first step, with everything checked; and its release, after the last."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpbnn import _validate, lint
from dpbnn._warn import warn
from dpbnn.clipping import check_model
from dpbnn.data.records import DatasetRecords, InMemoryRecords, as_records, brought_to
from dpbnn.device.execution import Execution
from dpbnn.methods import Method, Prepared
from dpbnn.models.likelihoods import Likelihood
from dpbnn.posterior import Posterior
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.source import NOISE_SOURCES
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.release.draft import Draft
from dpbnn.seeds import derived_seed
from dpbnn.training.checkpoint import Checkpoint
from dpbnn.training.diagnostics import Diagnostics
from dpbnn.training.position import Position
from dpbnn.training.prepare import check_types, model_for, prepared_by, refuse_several_processes, warn_of
from dpbnn.training.steps import Work

__all__ = ["Run", "prepared"]

LARGEST_WEIGHT = 1e6


def prepared(
    model: nn.Module,
    X: Any,
    y: Any,
    method: Method[Any],
    plan: PrivacyPlan,
    likelihood: Likelihood,
    seed: int | None = None,
    device: str | torch.device | None = None,
    execution: Execution | None = None,
    unsafe_diagnostics: bool = False,
    unsafe_seed: int | None = None,
    must_try: bool = False,
) -> "Run":
    """A run that is checked and ready to begin; the arguments are those of `fit`.

    With `must_try` the model is tried on synthetic records even if an equal one has been.
    """
    refuse_several_processes()
    check_types(model, method, plan, likelihood)
    execution = Execution() if execution is None else execution
    if not isinstance(execution, Execution):
        _validate.refuse("execution", "an Execution", execution)
    _validate.one_of("Execution.noise", execution.noise, NOISE_SOURCES)
    settled = prepared_by(method, plan)
    plan, model = settled.plan, model_for(method, model, device)
    weight = next(model.parameters())
    records = as_records(X, y, weight.dtype)
    checked = check_model(
        model,
        likelihood,
        *(part.to(weight.device) for part in records.empty),
        precision=execution.precision,
        must_try=must_try,
    )
    if isinstance(records, InMemoryRecords):
        likelihood.check_values(records.y, checked.num_outputs)
    if isinstance(records, DatasetRecords):
        records.refuse_known_draws(execution.dataset_workers)
    settled = replace(settled, remarks=warn_of(settled, likelihood))
    records = brought_to(weight.device, records, execution.data_on_device)
    randomness = Randomness.from_operating_system() if unsafe_seed is None else Randomness.from_seed(unsafe_seed)
    seed = derived_seed(None) if seed is None else _validate.whole_number("seed", seed, at_least=0)
    diagnostics = Diagnostics(unsafe_diagnostics)
    work = Work(checked, records, method, plan, execution, diagnostics, randomness, seed)
    work.check_first_step()
    return Run(work, settled)


@dataclass
class Run:
    """What `prepared` has checked: the work, what the method has settled, with all remarks, and lint findings."""

    work: Work
    prepared: Prepared
    findings: tuple[lint.Finding, ...] = ()

    def linted(self, x: Any, y: Any, public_data: tuple[Any, Any] | None = None) -> "Run":
        """Apply the lint rules: refuse private data in `public_data`, warn of weak settings, and note all findings."""
        work = self.work
        objective, seed = work.checked.objective, 0 if work.randomness.is_seeded_by_user else None
        known = work.plan, work.checked.model, objective.likelihood, work.method, x, y, public_data
        subject = lint.Subject(*known, unsafe_seed=seed, unsafe_diagnostics=work.diagnostics.enabled)
        findings = lint.inspect(subject)
        lint.refuse(findings, "evaluation-on-training-data")
        for finding in findings:
            if finding.severity == "weak":
                warn(str(finding))
        return replace(self, findings=tuple(findings))

    def begin(self, ledger: Ledger | None = None, folder: Checkpoint | None = None) -> Position:
        """The first step, or where an interrupted run was; without a ledger that was opened it cannot be released."""
        return Position.first(self.work, Ledger(self.work.plan) if ledger is None else ledger, folder)

    def draft(self, position: Position, history: Iterable[Mapping[str, float]] = ()) -> Draft:
        """All of a release but the guarantee, after the last step."""
        work = position.work
        posterior = work.method.to_posterior(position.state)
        report = posterior.report()
        warnings = [*report.pop("warnings", ()), *_diverged(posterior)]
        for text in warnings:
            warn(text)
        report = {**self.prepared.settings, **report}
        report |= {"engine": work.checked.engine, "steps_taken": position.how}
        report |= {"releases_charged": len(position.ledger.charges)}
        if self.prepared.remarks or warnings:
            report["warnings"] = [*self.prepared.remarks, *warnings]
        return Draft(
            position.ledger,
            posterior,
            work.checked.model,
            work.checked.objective.likelihood,
            work.random_source,
            work.voided_by,
            lint.with_findings(report, self.findings),
            tuple(history),
            tuple(work.diagnostics.entries),
        )


def _diverged(posterior: Posterior) -> list[str]:
    """A warning if released weights are very large, or no numbers; they are public, so the check costs nothing."""
    first = next(iter(posterior.draw(1, seed=0)))
    sizes = (values.abs().nan_to_num(math.inf) for values in first.values() if values.numel())
    largest = max((float(values.max()) for values in sizes), default=0.0)
    if largest <= LARGEST_WEIGHT:
        return []
    return [f"The trained weights reach {largest:.3g}: the run has diverged. Its budget is spent; use a smaller rate."]
