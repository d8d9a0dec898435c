"""`fit`: the only training loop of the library.

One run, top to bottom: check everything -> for each step: Poisson batch -> clipped sum -> **noise** -> charge ->
update -> posterior + guarantee = release. What comes after the noise is never handed data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from dpbnn import _validate, lint
from dpbnn._warn import warn
from dpbnn.clipping import check_model
from dpbnn.data.records import DatasetRecords, InMemoryRecords, as_records, brought_to
from dpbnn.device.execution import Execution
from dpbnn.methods import Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.posterior import Posterior
from dpbnn.privacy.ledger import Ledger, fingerprint
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.purchases import LedgerError
from dpbnn.release.draft import Draft
from dpbnn.release.release import Release
from dpbnn.seeds import derived_seed
from dpbnn.training.checkpoint import Checkpoint, Saved, current_environment, digests_of, opened
from dpbnn.training.diagnostics import Diagnostics
from dpbnn.training.prepare import check_types, on_current_device, on_device, raised, refuse_several_processes, remarks
from dpbnn.training.progress import show_progress
from dpbnn.training.public_measure import PublicMeasure
from dpbnn.training.steps import EagerSteps, RecordedSteps, Steps, Work, why_not_recorded

__all__ = ["Position", "Run", "fit", "prepared", "steps_from"]

LARGEST_WEIGHT = 1e6


def fit(
    model: nn.Module,
    X: Any,
    y: Any = None,
    *,
    method: Method[Any],
    plan: PrivacyPlan,
    likelihood: Likelihood,
    seed: int | None = None,
    device: str | torch.device | None = None,
    execution: Execution | None = None,
    checkpoint: Any = None,
    keep_checkpoint: bool = False,
    take_over: bool = False,
    progress: bool = True,
    public_data: tuple[Any, Any] | None = None,
    unsafe_diagnostics: bool = False,
    unsafe_seed: int | None = None,
) -> Release:
    """Train under a privacy plan.

    Args:
        model: any module that keeps records apart; it is neither wrapped nor changed, and its initial weights must
            not depend on the private data. Parameters with ``requires_grad=False`` stay as they are.
        X: inputs, records first: a tensor, a NumPy array, or a map-style `Dataset` of (x, y) pairs.
        y: targets, records first; None for a `Dataset`.
        method: how released gradients become a posterior, such as ``SGD(learning_rate=0.25)``.
        plan: what will be charged, and with it sampling, clipping and noise.
        likelihood: gives each record's loss from the model's output.
        seed: for the method's own draws; it never reaches sampling, masks or noise.
        device: where to train; the model's own by default.
        execution: speed and memory.
        checkpoint: a folder; an interrupted run that is started again with it continues. It is as secret as the data,
            must lie outside of anything published, must not be copied, and is removed at the end. One process at a time
            works on it. Where a run goes on with another device, precision, number of threads or version, it draws its
            noise afresh, and steps since the last state are charged again.
        keep_checkpoint: leave that to the caller: until it is removed, the same call gives the same release again.
        take_over: continue also a checkpoint of another host, whose worker is gone or must stop: if it still runs, it
            stops before its next release. Has no effect on a checkpoint of this host.
        progress: whether to show a progress bar, if there is a terminal.
        public_data: (X, y) that are declared public, to be measured on along the way.
        unsafe_diagnostics: keep clip shares, norms and batch sizes, which have no noise; voids the guarantee.
        unsafe_seed: make sampling and noise repeatable, for tests; voids the guarantee.

    Returns:
        The posterior with its guarantee.

    Guarantees:
        No step is taken beyond the plan.
        Everything visible depends on the records only through the noisy sums.
        A resumed run ends as an uninterrupted one.
    """
    with opened(checkpoint, take_over) as folder:
        how = device, execution, unsafe_diagnostics, unsafe_seed
        run = prepared(model, X, y, method, plan, likelihood, seed, *how, must_try=True)
        measure = PublicMeasure.on(run.work.checked, public_data, plan.steps)
        run = run.inspected(X, y, public_data)

        with method.reserved(is_resumed=folder is not None and folder.is_begun):
            ledger = Ledger.open(run.work.plan, is_void=bool(_voided_by(run.work)))
            position = run.trained(ledger, folder, measure, progress)
            release = run.release(position, measure)
        if keep_checkpoint:
            run.save(position, folder)
        elif folder is not None:
            folder.remove()
    return release


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

    `must_try` says that the model is tried on synthetic records even if its like has been.
    """
    refuse_several_processes()
    check_types(model, method, plan, likelihood)
    execution = Execution() if execution is None else execution
    if not isinstance(execution, Execution):
        _validate.refuse("execution", "an Execution", execution)
    plan = raised(plan, method)
    working = method.model_for(on_device(model, device))
    own = next(working.parameters())
    records = as_records(X, y, own.dtype)
    checked = check_model(
        working,
        likelihood,
        *(part.to(own.device) for part in records.empty),
        precision=execution.precision,
        must_try=must_try,
    )
    if isinstance(records, InMemoryRecords):
        likelihood.check_values(records.y, checked.num_outputs)
    if isinstance(records, DatasetRecords):
        records.refuse_known_draws(execution.dataset_workers)
    advice = tuple(remarks(method, likelihood, plan))
    records = brought_to(own.device, records, execution.data_on_device)
    randomness = Randomness.from_operating_system() if unsafe_seed is None else Randomness.from_seed(unsafe_seed)
    own_seed = derived_seed(None) if seed is None else _validate.whole_number("seed", seed, at_least=0)
    diagnostics = Diagnostics(unsafe_diagnostics)
    work = Work(checked, records, method, plan, execution, diagnostics, randomness, own_seed)
    work.refuse_inexact_sums()
    return Run(work, advice)


@dataclass(frozen=True)
class Position:
    """Where a run stands: `step` steps are done. `work` has the draws of the run as it goes on from here."""

    work: Work
    state: Any
    ledger: Ledger
    digests: Mapping[str, bytes]
    environment: Mapping[str, str] = field(default_factory=dict)
    how: str = ""
    step: int = 0


@dataclass(frozen=True)
class Run:
    """A run, before its first step; `findings` are the guard's."""

    work: Work
    advice: tuple[str, ...]
    findings: tuple[lint.Finding, ...] = ()

    def inspected(self, x: Any, y: Any, public_data: tuple[Any, Any] | None = None) -> "Run":
        """Let the guard look at all of it: refuse what it must, warn of what is weak, and note the rest."""
        work = self.work
        objective, seed = work.checked.objective, 0 if work.randomness.is_seeded_by_user else None
        setup = lint.Subject(work.plan, work.checked.model, objective.likelihood, work.method, x, y, public_data)
        found = lint.inspect(replace(setup, unsafe_seed=seed, unsafe_diagnostics=work.diagnostics.wanted))
        lint.refuse(found, "evaluation-on-training-data")
        for weak in (own for own in found if own.severity == "weak"):
            warn(str(weak))
        return replace(self, findings=tuple(found))

    def trained(
        self, ledger: Ledger, folder: Checkpoint | None, measure: PublicMeasure | None = None, progress: bool = False
    ) -> Position:
        """All steps, paid for by a ledger that was opened for this run's plan; nothing is released yet."""
        if ledger.plan != self.work.plan:
            raise LedgerError("a run was to be paid for by the ledger of another plan")
        method = self.work.method
        with on_current_device(self.work.device):
            position = self.begin(folder, ledger)
            with show_progress(self.work.plan, position.step, progress) as display:
                for reached in self.steps(position, folder):
                    position, now = reached, partial(method.to_posterior, reached.state)
                    display(position.step, "" if measure is None else measure.after(position.step, now))
        return position

    def save(self, position: Position, folder: Checkpoint | None) -> None:
        """Write down where the run stands: until the folder is removed, the same call goes on from there."""
        if folder is not None:
            _save(position, folder)

    def begin(self, folder: Checkpoint | None = None, ledger: Ledger | None = None) -> Position:
        """The first step, or where an interrupted run was; without a ledger that was opened it cannot be released."""
        ledger = Ledger(self.work.plan) if ledger is None else ledger
        if folder is not None and (saved := folder.resumed()) is not None:
            return self._resume(saved, folder, ledger)
        position = Position(self.work, self.work.initial_state(), ledger, {})
        if folder is not None:
            position = replace(position, digests=_digests(self.work), environment=_environment(self.work))
            _save(position, folder)
        return position

    def steps(self, position: Position, folder: Checkpoint | None) -> Iterator[Position]:
        """Take the remaining steps, one at a time."""
        steps = steps_from(position)
        while position.step < self.work.plan.steps:
            step, ledger, state = position.step, position.ledger, position.state
            if folder is None:
                ledger.enter(step, step)  # no step is repeated here: any number serves as its fingerprint
                state = steps.release_and_take(state, step)
                ledger.use(step, step)
            else:
                noisy = steps.release(state, step)
                mark = fingerprint(noisy)
                if ledger.has_charged(step) and not ledger.holds(step, mark):
                    # Not what was released before the interruption: drop it, and draw everything afresh from here on.
                    ledger.drop()
                    position = _with_fresh_key(position, folder)
                    steps = steps_from(position)
                    noisy = steps.release(state, step)
                    mark = fingerprint(noisy)
                if not ledger.holds(step, mark):
                    folder.charge(ledger, step, mark)
                if ledger.holds(step, mark):
                    ledger.use(step, mark)
                    state = steps.take(state, noisy, step)
                else:
                    ledger.drop()
            position = replace(position, state=state, step=step + 1, how=steps.how)
            if folder is not None and folder.is_due(self.work.execution.checkpoint_seconds):
                _save(position, folder)
            yield position

    def release(
        self, position: Position, measure: PublicMeasure | None = None, settings: Mapping[str, Any] | None = None
    ) -> Release:
        """Posterior and guarantee: what the run gives away."""
        return self.draft(position, measure).release(settings=settings)

    def draft(self, position: Position, measure: PublicMeasure | None = None) -> Draft:
        """All of a release but the guarantee, after the last step."""
        work = position.work
        objective, posterior = work.checked.objective, work.method.to_posterior(position.state)
        findings = posterior.report()
        found = [*findings.pop("warnings", ()), *_diverged(posterior)]
        for text in found:
            warn(text)
        report = work.method.report(work.plan) | findings | {"engine": work.checked.engine, "steps_taken": position.how}
        report |= {"releases_charged": len(position.ledger.charges)}
        report |= {"warnings": [*self.advice, *found]} if self.advice or found else {}
        return Draft(
            position.ledger,
            posterior,
            work.checked.model,
            objective.likelihood,
            work.randomness.source,
            tuple(_voided_by(work)),
            lint.with_findings(report, self.findings),
            () if measure is None else tuple(measure.history),
            tuple(work.diagnostics.entries),
        )

    def _resume(self, saved: Saved, folder: Checkpoint, ledger: Ledger) -> Position:
        work = replace(self.work, randomness=Randomness(saved.key, saved.source), seed=saved.state["seed"])
        folder.check(saved, _digests(work))
        state = work.method.restored(work.initial_state(), saved.state["method"])
        ledger.resume(folder.charges())
        now, how = _environment(work), saved.state["how"]
        position = Position(work, state, ledger, saved.digests, now, how, saved.step)
        is_same = now == saved.environment and not folder.is_taken_over
        return position if is_same else _with_fresh_key(position, folder)


def steps_from(position: Position) -> Steps:
    """CUDA graphs on a CUDA device, where model and method can be captured; eager steps elsewhere."""
    reason = why_not_recorded(position.work, position.state, position.step)
    if reason is None:
        return RecordedSteps([position.work], [position.state], position.step, ledgers=[position.ledger])
    if reason:
        warn(f"Steps are taken one by one, which is slower: {reason}.")
    return EagerSteps(position.work, position.step, position.ledger)


def _with_fresh_key(position: Position, folder: Checkpoint) -> Position:
    work = replace(position.work, randomness=position.work.randomness.renewed())
    position = replace(position, work=work, digests=_digests(work))
    _save(position, folder)  # first: with the old key, forgotten marks would let its noise be used again
    position.ledger.forget_marks()
    again = len(position.ledger.charges) - position.step
    if again > 0:
        warn(
            f"The resumed run may round differently (taken over, or another machine, version, "
            f"precision or number of threads), so it "
            f"draws fresh noise: {again} steps are charged again, and the run ends that many steps short."
        )
    return position


def _save(position: Position, folder: Checkpoint) -> None:
    work = position.work
    state = {"seed": work.seed, "method": work.method.state_to_save(position.state), "how": position.how}
    secret = work.randomness.key, work.randomness.source
    folder.write(Saved(*secret, position.step, state, position.digests, position.environment))


def _environment(work: Work) -> dict[str, str]:
    return current_environment(work.device, work.execution, work.checked.engine, type(work.records).__name__)


def _digests(work: Work) -> dict[str, bytes]:
    settings = {
        "the plan": work.plan.to_json(),
        "the method": repr(work.method),
        "the likelihood": repr(work.checked.objective.likelihood),
        "unsafe_diagnostics": repr(work.diagnostics.wanted),
    }
    return digests_of(work.randomness.key, work.records, work.checked.objective.model, settings)


def _voided_by(work: Work) -> list[str]:
    reasons = []
    if work.randomness.is_seeded_by_user:
        reasons.append("sampling and noise were seeded by the user (unsafe_seed)")
    if work.diagnostics.wanted:
        reasons.append("values without noise were kept (unsafe_diagnostics)")
    return reasons


def _diverged(posterior: Posterior) -> list[str]:
    """Released weights may be looked at."""
    first = next(iter(posterior.draw(1, seed=0)))
    largest = max((float(values.abs().max()) for values in first.values() if values.numel()), default=0.0)
    if largest <= LARGEST_WEIGHT:
        return []
    return [f"The trained weights reach {largest:.3g}: the run has diverged. Its budget is spent; use a smaller rate."]
