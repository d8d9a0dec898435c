"""`fit`: the only training loop of the library.

One run, top to bottom: check everything -> for each step: Poisson batch -> clipped sum -> **noise** -> charge ->
update -> posterior + guarantee = release. What comes after the noise is never handed data.
"""

import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn import _validate
from dpbnn.checkpoint import Checkpoint, Saved, digests
from dpbnn.clipping import CheckedModel, check_model, clip_and_sum
from dpbnn.clipping.objective import wide
from dpbnn.diagnostics import Diagnostics
from dpbnn.likelihoods import Likelihood
from dpbnn.methods import Method
from dpbnn.own_draws import derived_seed
from dpbnn.posterior import Posterior
from dpbnn.preparation import check_types, on_device, raised, remarks
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.privacy.ledger import FRESH_KEY, Ledger, fingerprint
from dpbnn.privacy.mechanism import add_noise
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.randomness import Randomness
from dpbnn.privacy.sampling import PoissonSampler
from dpbnn.progress import show_progress
from dpbnn.public_measure import PublicMeasure
from dpbnn.records import Batch, InMemoryRecords, Records, as_records
from dpbnn.release import Release
from dpbnn.types import DpbnnWarning, NoisySum

__all__ = ["Execution", "fit"]

LARGEST_WEIGHT = 1e6


@dataclass(frozen=True)
class Execution:
    """How a run is carried out: speed and memory, never what is released nor what it costs.

    Args:
        micro_batch_size: records taken through the model at a time.
        dataset_workers: processes that read a `Dataset`.
        checkpoint_seconds: how often a checkpoint's state is written, or less often where that would take more than a
            twentieth of the time (many kept samples); what happens in between is in its journal.
    """

    micro_batch_size: int | None = None
    dataset_workers: int = 0
    checkpoint_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None:
            _validate.whole_number("micro_batch_size", self.micro_batch_size)
        _validate.whole_number("dataset_workers", self.dataset_workers, at_least=0)
        _validate.non_negative("checkpoint_seconds", self.checkpoint_seconds)


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
            must lie outside of anything published, and is removed at the end.
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
    check_types(model, method, plan, likelihood)
    execution = Execution() if execution is None else execution
    if not isinstance(execution, Execution):
        _validate.refuse("execution", "an Execution", execution)
    plan = raised(plan, method)
    working = method.model_for(on_device(model, device))
    own = next(working.parameters())
    records = as_records(X, y, own.dtype)
    checked = check_model(working, likelihood, *(part.to(own.device) for part in records.empty))
    if isinstance(records, InMemoryRecords):
        likelihood.check_values(records.y, checked.num_outputs)
    advice = tuple(remarks(method, likelihood, plan))
    run = _Run(checked, records, method, plan, execution, Diagnostics(unsafe_diagnostics), advice)
    measure = PublicMeasure.on(checked, public_data, plan.steps)
    randomness = Randomness.from_operating_system() if unsafe_seed is None else Randomness.from_seed(unsafe_seed)
    own_seed = secrets.randbits(63) if seed is None else _validate.whole_number("seed", seed, at_least=0)
    folder = None if checkpoint is None else Checkpoint(checkpoint)

    position = run.begin(randomness, own_seed, folder)
    with _own_draws(own.device), show_progress(plan, position.step, progress) as display:
        for reached in run.steps(position, folder):
            position = reached
            display(position.step, measure.after(position.step, partial(method.to_posterior, position.state)))
    release = run.release(position, measure)
    if folder is not None:
        folder.remove()
    return release


@dataclass(frozen=True)
class _Position:
    """Where a run stands: `step` steps are done."""

    randomness: Randomness
    seed: int
    state: Any
    ledger: Ledger
    digests: Mapping[str, bytes]
    step: int = 0


@dataclass(frozen=True)
class _Run:
    """Everything that a run's steps need."""

    checked: CheckedModel
    records: Records
    method: Method[Any]
    plan: PrivacyPlan
    execution: Execution
    diagnostics: Diagnostics
    advice: tuple[str, ...]

    def begin(self, randomness: Randomness, seed: int, folder: Checkpoint | None) -> _Position:
        """The first step, or where an interrupted run was."""
        if folder is not None and (saved := folder.read()) is not None:
            return self._resume(saved, folder)
        of_run = {} if folder is None else self._digests(randomness.key)
        position = _Position(randomness, seed, self._initial_state(seed), Ledger(self.plan), of_run)
        if folder is not None:
            self._save(position, folder)
        return position

    def steps(self, position: _Position, folder: Checkpoint | None) -> Iterator[_Position]:
        """Take the remaining steps, one at a time."""
        batches = self._batches(position)
        while position.step < self.plan.steps:
            step, ledger = position.step, position.ledger
            noisy = self._noisy_sum(position, *next(batches))
            mark = step if folder is None else fingerprint(noisy)
            if folder is not None and ledger.has_charged(step) and not ledger.holds(step, mark):
                # Not what was released before the interruption: drop it, and draw everything afresh from here on.
                position = self._with_fresh_key(position, folder)
                batches = self._batches(position)
                noisy = self._noisy_sum(position, *next(batches))
                mark = fingerprint(noisy)
            if not ledger.holds(step, mark) and ledger.can_afford(step):
                ledger.enter(step, mark)
                if folder is not None:
                    folder.note(step, mark)
            _forget_masks(derived_seed(position.seed, step), self.device)
            state = position.state
            if ledger.holds(step, mark):
                state = self.method.keep(self.method.update(state, noisy, step), step)
            position = replace(position, state=state, step=step + 1)
            if folder is not None and folder.is_due(self.execution.checkpoint_seconds):
                self._save(position, folder)
            yield position

    def _batches(self, position: _Position) -> Iterator[Batch]:
        sampler = PoissonSampler(len(self.records), self.plan.sampling_rate, position.randomness)
        batches = self.records.batches(sampler, position.step, self.plan.steps, self.execution.dataset_workers)
        for step in range(position.step, self.plan.steps):
            position.randomness.seed_model(step, self.device)
            x, y = next(batches)
            yield x.to(self.device), y.to(self.device)

    def _noisy_sum(self, position: _Position, x: Tensor, y: Tensor) -> NoisySum:
        """One release: the only lines that see records and what they become."""
        step = position.step
        clipped = clip_and_sum(
            self.checked,
            self.method.weights(position.state, step),
            x,
            y,
            self.plan.clip_norm_at(step),
            clipping=self.plan.clipping,
            micro_batch_size=self.execution.micro_batch_size,
            observe=self.diagnostics.observer(step),
        )
        return add_noise(clipped, self.plan.noise_at(step), position.randomness, step)

    def _with_fresh_key(self, position: _Position, folder: Checkpoint) -> _Position:
        randomness = position.randomness.renewed()
        position = replace(position, randomness=randomness, digests=self._digests(randomness.key))
        position.ledger.forget_marks()
        self._save(position, folder)  # first: with the old key, forgotten marks would let its noise be used again
        folder.note(FRESH_KEY, 0)
        return position

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.checked.objective.model.parameters()).device

    def release(self, position: _Position, measure: PublicMeasure) -> Release:
        """Posterior and guarantee: what the run gives away."""
        objective, posterior = self.checked.objective, self.method.to_posterior(position.state)
        findings = posterior.report()
        found = [*findings.pop("warnings", ()), *_diverged(posterior)]
        for text in found:
            warnings.warn(text, DpbnnWarning, stacklevel=3)
        report = self.method.report(self.plan) | findings
        report |= {"engine": self.checked.engine, "releases_charged": len(position.ledger.charges)}
        report |= {"warnings": [*self.advice, *found]} if self.advice or found else {}
        guarantee = PrivacyGuarantee.for_plan(
            self.plan, random_source=position.randomness.source, voided_by=self._voided_by(position.randomness)
        )
        return Release(
            posterior,
            guarantee,
            objective.model,
            objective.likelihood,
            report,
            tuple(measure.history),
            tuple(self.diagnostics.entries),
        )

    def _initial_state(self, seed: int) -> Any:
        weights = self.checked.objective.model_weights() | self.checked.likelihood_weights
        return self.method.init({name: wide(values) for name, values in weights.items()}, self.plan, seed)

    def _save(self, position: _Position, folder: Checkpoint) -> None:
        state = {"seed": position.seed, "method": self.method.state_to_save(position.state)}
        randomness = position.randomness
        folder.write(Saved(randomness.key, randomness.source, position.step, state, position.digests))

    def _resume(self, saved: Saved, folder: Checkpoint) -> _Position:
        folder.check(saved, self._digests(saved.key))
        seed = saved.state["seed"]
        state = self.method.restored(self._initial_state(seed), saved.state["method"])
        randomness, ledger = Randomness(saved.key, saved.source), Ledger(self.plan, folder.charges())
        return _Position(randomness, seed, state, ledger, saved.digests, saved.step)

    def _digests(self, key: bytes) -> dict[str, bytes]:
        settings = {
            "the plan": self.plan.to_json(),
            "the method": repr(self.method),
            "the likelihood": repr(self.checked.objective.likelihood),
            "unsafe_diagnostics": repr(self.diagnostics.wanted),
        }
        return digests(key, self.records, self.checked.objective.model, settings)

    def _voided_by(self, randomness: Randomness) -> list[str]:
        reasons = []
        if randomness.is_seeded_by_user:
            reasons.append("sampling and noise were seeded by the user (unsafe_seed)")
        if self.diagnostics.wanted:
            reasons.append("values without noise were kept (unsafe_diagnostics)")
        return reasons


def _diverged(posterior: Posterior) -> list[str]:
    """Released weights may be looked at."""
    first = next(iter(posterior.draw(1, seed=0)))
    largest = max((float(values.abs().max()) for values in first.values() if values.numel()), default=0.0)
    if largest <= LARGEST_WEIGHT:
        return []
    return [f"The trained weights reach {largest:.3g}: the run has diverged. Its budget is spent; use a smaller rate."]


def _forget_masks(seed: int, device: torch.device) -> None:
    """A method may draw from torch's generator, but not in the state that the masks left, which tells their number."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def _own_draws(device: torch.device) -> Iterator[None]:
    """Whatever the model draws leaves the caller's generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
