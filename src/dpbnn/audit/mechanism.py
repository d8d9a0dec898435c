"""What one step really releases: how far a record can move it, and how much noise is on it.

    release = clipped sum + noise        D = how far a canary moves the clipped sum

The attacker knows everything but whether one record is there: weights, all other records, the record itself. His best
score is then <release, D> / |D|, and all that protects the record is the noise in units of |D|. Both are measured on
the code that trains: sampling (at rate 1), the clipping engine and `add_noise`, through the steps of a real run.

    noise      every number of every release, less the clipped sum, is an observation of it
    |D|        canaries that are far out, at zero, and in single inputs, so that all layers are reached; in all places
    scores     with and without the worst canary, end to end: the same without knowing what noise should look like
    training   how weights move, step by step, with records and without any; and a step of each level of the plan
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpbnn.audit.bounds import epsilon_by_counts, epsilon_of_noise, noise_multiplier_bounds, spread_bounds
from dpbnn.audit.checks import ALARM, Check
from dpbnn.clipping.made_up import made_up_records
from dpbnn.execution import Execution
from dpbnn.likelihoods import Likelihood
from dpbnn.methods import SGD, Method
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import runs_of, value_at
from dpbnn.training import Run, prepared, steps_from
from dpbnn.types import Weights

__all__ = ["MechanismAudit", "audit_mechanism"]

BACKGROUND = 20
"""Records beside the canary."""
PATH_STEPS, PATH_MOVE = 30, 0.1
"""Of a run that is followed, and how far its noise moves a weight in each."""
SCALES = (1.0, 100.0, 1e4, 0.0)
"""What made-up inputs are multiplied with."""
NO_NUMBERS = (math.nan, math.inf, 1e30)
MOST_RELEASES, FEWEST_RELEASES = 4000, 200
MOST_NUMBERS = 4096
"""Of each release that are looked at one by one."""
MOST_COMPARED = 1500
"""Releases that are each compared with each other."""
FAR = 3.5
"""Standard deviations: beyond them noise that is cut off has nothing."""


@dataclass(frozen=True)
class MechanismAudit:
    """What was seen of single steps, and what follows for a run.

    Args:
        engine: of clipping.
        observations: numbers in releases that were looked at.
        claimed_noise_multiplier: by the plan.
        noise_multiplier: bounds on the real one, at the confidence.
        claimed_epsilon: by the plan, of all its steps.
        epsilon: at least this, at the confidence.
        epsilon_by_counts: of one step at rate 1, from end-to-end scores, without assuming a shape of the noise.
        furthest: how far a canary moves the clipped sum, in clip norms.
        checks: what must be so.
    """

    engine: str
    observations: int
    claimed_noise_multiplier: float
    noise_multiplier: tuple[float, float]
    claimed_epsilon: float
    epsilon: float
    epsilon_by_counts: float
    furthest: float
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the claim."""
        return all(check.holds for check in self.checks)


def audit_mechanism(
    model: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    plan: PrivacyPlan,
    *,
    method: Method[Any] | None = None,
    execution: Execution | None = None,
    observations: int = 100_000,
    confidence: float = 0.95,
) -> MechanismAudit:
    """Attack single steps of a run. Of `x` and `y` only shapes and types are used: all records are made up.

    Guarantees:
        `epsilon` is above the true one with a probability of at most ``1 - confidence``, if noise is Gaussian and
        alike in all tensors
        on code that is right, each check fails at most once in ``1 / ALARM``
    """
    noise, clip = value_at(plan.noise_multiplier, 0), value_at(plan.clip_norm, 0)
    attack = _Attack(model, likelihood, x, y, _one_level(plan, noise, clip), method or SGD(1.0), execution)
    moves = [attack.move(index) for index in range(len(attack.canaries[0]))]
    worst = max(range(len(moves)), key=lambda index: float(moves[index].norm()))
    distance = max([float(moves[worst].norm()), *attack.moves_elsewhere(worst)])
    seen = [attack.seen(own, moves[worst] / moves[worst].norm(), observations) for own in (worst, None)]
    residuals, scores = [own[0] / (noise * clip) for own in seen], [own[1] / clip for own in seen]
    spread = spread_bounds(np.concatenate([own.ravel() for own in residuals]), confidence)
    bounds = noise * spread[0] * clip / distance, noise * spread[1] * clip / distance
    levels = tuple((level * bounds[1] / noise, steps) for level, steps in plan.noise_levels)
    ends = noise_multiplier_bounds(scores[0], scores[1], confidence=1 - ALARM)
    claimed = plan.epsilon()
    checks = [
        Check(
            "the claimed epsilon is no less than what the claimed noise costs",
            float(epsilon_of_noise(plan.noise_levels, plan.sampling_rate, plan.delta) <= claimed),
        ),
        Check("no canary moves the sum by more than the clip norm", float(distance <= clip * (1 + 1e-6))),
        Check("a sum over no records is zero", float(not attack.of_nothing.any())),
        Check("records that are no numbers move nothing", float(attack.ignores_what_is_no_number())),
        Check("end to end, a canary is hidden by the noise that is claimed", float(ends[1] >= noise)),
        *_checks_of_noise(residuals, attack.tensors),
        attack.every_level(plan),
        attack.path("training moves weights by noisy sums alone", *attack.background),
        attack.path("steps without a record have noise too", x[:0], y[:0]),
    ]
    return MechanismAudit(
        engine=attack.engine,
        observations=sum(own.size for own in residuals),
        claimed_noise_multiplier=noise,
        noise_multiplier=bounds,
        claimed_epsilon=claimed,
        epsilon=epsilon_of_noise(levels, plan.sampling_rate, plan.delta),
        epsilon_by_counts=epsilon_by_counts(scores[0], scores[1], plan.delta, confidence),
        furthest=distance / clip,
        checks=tuple(checks),
    )


def _one_level(plan: PrivacyPlan, noise: float, clip: float) -> PrivacyPlan:
    """Steps like its first one, with all records in every batch."""
    size: Any = {"dataset_size": BACKGROUND + 1, "batch_size": BACKGROUND + 1, "steps": MOST_RELEASES}
    return replace(plan, noise_multiplier=noise, clip_norm=clip, pure_epsilons=(), max_records_per_person=1, **size)


class _Attack:
    """Runs with and without a canary, of which only releases are asked for: the weights stay where they are."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        x: Tensor,
        y: Tensor,
        plan: PrivacyPlan,
        method: Method[Any],
        execution: Execution | None,
    ) -> None:
        self._make: Any = (model, method, plan, likelihood, execution)
        self.nothing = x[:0], y[:0]
        run = self._run(*self.nothing)
        checked = run.work.checked
        made_up = made_up_records(checked.objective, x, y, BACKGROUND + 2 * len(SCALES), checked.num_outputs)
        self.engine = checked.engine
        self.background = made_up[0][:BACKGROUND], made_up[1][:BACKGROUND]
        self.canaries = _far_out(made_up[0][BACKGROUND:]), _far_out(made_up[1][BACKGROUND:])
        nothing = run.work.clipped(run.begin().state, 0, x[:0], y[:0]).gradients
        self.of_nothing = torch.cat([nothing[name].ravel() for name in sorted(nothing)])
        self.chosen, self.tensors = _some_of_each([nothing[name].numel() for name in sorted(nothing)])

    def _run(self, x: Tensor, y: Tensor, method: Method[Any] | None = None, plan: PrivacyPlan | None = None) -> Run:
        model, own_method, own_plan, likelihood, execution = self._make
        return prepared(model, x, y, method or own_method, plan or own_plan, likelihood, seed=0, execution=execution)

    def _with(self, canary: tuple[Tensor, Tensor] | None) -> Run:
        x, y = self.background
        if canary is not None:
            x, y = torch.cat([x, canary[0]]), torch.cat([y, canary[1]])
        return self._run(x, y)

    def _canary(self, index: int) -> tuple[Tensor, Tensor]:
        return self.canaries[0][index : index + 1], self.canaries[1][index : index + 1]

    def move(self, index: int) -> Tensor:
        """How far a canary moves the clipped sum."""
        return self._moved(self._canary(index))

    def _moved(self, canary: tuple[Tensor, Tensor]) -> Tensor:
        """In one and the same run, so that secret draws of the model, such as dropout masks, are the same."""
        run = self._with(canary)
        state = run.begin().state
        return _clipped(run, state, 0) - _clipped(run, state, 0, range(BACKGROUND))

    def moves_elsewhere(self, index: int) -> list[float]:
        """How far it moves the sum as the first record and in the middle; only where nothing is drawn by position."""
        run = self._with(self._canary(index))
        state = run.begin().state
        if not torch.equal(_clipped(run, state, 0), _clipped(run, state, 1)):
            return []
        others, found = list(range(BACKGROUND)), []
        for place in (0, BACKGROUND // 2):
            rows = [*others[:place], BACKGROUND, *others[place:]]
            moved = _clipped(run, state, 0, rows) - _clipped(run, state, 0, others)
            found.append(float(moved.norm()))
        return found

    def every_level(self, plan: PrivacyPlan) -> Check:
        """A step of each level of noise and clipping, and the last one, of a run with nothing in it but noise."""
        from scipy.stats import chi2

        size: Any = {"dataset_size": BACKGROUND + 1, "batch_size": BACKGROUND + 1}
        own = replace(plan, **size, pure_epsilons=(), max_records_per_person=1)
        levels = [runs_of(own, plan.steps) for own in (plan.noise_multiplier, plan.clip_norm)]
        begins = {step for runs in levels for step in accumulate(steps for _, steps in runs) if step < plan.steps}
        chosen = sorted({0, plan.steps - 1} | begins)
        run, found = self._run(*self.nothing, plan=own), []
        position = run.begin()
        for step in chosen:
            released = _flat(steps_from(replace(position, step=step)).release(position.state, step))
            spread = (released / (plan.noise_at(step) * plan.clip_norm_at(step))).square().sum()
            found.append(float(chi2.cdf(float(spread), len(released))))
        return Check("every level of the plan has its noise, to the last step", min(1.0, len(found) * min(found)))

    def path(self, name: str, x: Tensor, y: Tensor) -> Check:
        """Follow weights as `fit` moves them: what they move by, less the clipped sum, is noise of the claimed size."""
        from scipy.stats import chi2

        plan: PrivacyPlan = self._make[2]
        scale = plan.noise_at(0) * plan.clip_norm_at(0)
        rate = PATH_MOVE * plan.batch_size / scale
        run, squares, numbers = self._run(x, y, method=SGD(rate)), 0.0, 0
        position = run.begin()
        steps, state = steps_from(position), position.state
        for step in range(PATH_STEPS):
            exact, before = _clipped(run, state, step), _weights(run, state, step)
            state = steps.release_and_take(state, step)
            released = (before - _weights(run, state, step)) * plan.batch_size / rate
            squares += float(((released - exact) / scale).square().sum())
            numbers += len(exact)
        return Check(name, float(2 * min(chi2.cdf(squares, numbers), chi2.sf(squares, numbers))))

    def ignores_what_is_no_number(self) -> bool:
        """Whether NaN and infinity in a record leave the sum as it is, or at least within the clip norm."""
        x, y = self._canary(0)
        if not x.is_floating_point():
            return True
        limit = value_at(self._make[2].clip_norm, 0) * (1 + 1e-6)
        return all(float(self._moved((torch.full_like(x, bad), y)).norm()) <= limit for bad in NO_NUMBERS)

    def seen(self, canary: int | None, unit: Tensor, observations: int) -> tuple[np.ndarray, np.ndarray]:
        """Some numbers of releases less the clipped sum ``[releases, numbers]``, and the scores of all."""
        run = self._with(None if canary is None else self._canary(canary))
        position = run.begin()
        steps, state = steps_from(position), position.state
        releases = min(MOST_RELEASES, max(FEWEST_RELEASES, math.ceil(observations / 2 / len(self.chosen))))
        residuals, scores, exact = [], [], _clipped(run, state, 0)
        is_fixed = torch.equal(exact, _clipped(run, state, 1))
        for step in range(releases):
            found = _flat(steps.release(state, step))
            exact = exact if is_fixed else _clipped(run, state, step)
            residuals.append((found - exact)[self.chosen].numpy())
            scores.append(float(found @ unit))
        return np.stack(residuals), np.array(scores)


def _far_out(values: Tensor) -> Tensor:
    """Made-up inputs or targets at several scales; the second half in a single place of each record."""
    if not values.is_floating_point():
        return values
    scaled = values * torch.tensor(SCALES * 2, dtype=values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    if values[0].numel() > 1:
        flat = scaled.reshape(len(scaled), -1)
        flat[len(SCALES) :, 1:] = 0
    return scaled


def _clipped(run: Run, state: Any, step: int, rows: Sequence[int] | None = None) -> Tensor:
    """The clipped sum of all records, or of some rows, as a step would have it before its noise."""
    work = run.work
    work.method.begin_step(state, step)
    x, y = (own.to(work.device) for own in next(iter(work.records.batches(work.sampler, step, step + 1, 0))))
    if rows is not None:
        x, y = x[list(rows)], y[list(rows)]
    return _flat(work.clipped(state, step, x, y, masks=work.randomness.masks(step)))


def _weights(run: Run, state: Any, step: int) -> Tensor:
    weights: Any = run.work.method.weights(state, step)
    return torch.cat([weights[name].detach().double().cpu().ravel() for name in sorted(weights)])


def _flat(sums: Any) -> Tensor:
    gradients: Weights = sums.gradients
    return torch.cat([gradients[name].detach().double().cpu().ravel() for name in sorted(gradients)])


def _some_of_each(sizes: list[int]) -> tuple[Tensor, np.ndarray]:
    """Places of numbers, from all tensors, and of which tensor each is."""
    share = max(1, MOST_NUMBERS // len(sizes))
    starts = np.cumsum([0, *sizes])
    places = [start + torch.randperm(size)[:share] for start, size in zip(starts, sizes, strict=False)]
    return torch.cat(places), np.repeat(np.arange(len(sizes)), [len(own) for own in places])


def _checks_of_noise(residuals: list[np.ndarray], tensors: np.ndarray) -> Iterator[Check]:
    """Residuals in units of the noise that is claimed, in which they are standard normal and all independent."""
    from scipy.stats import binomtest, chi2, kstest, norm

    together = np.concatenate(residuals)
    by_tensor = [chi2.cdf((own**2).sum(), own.size) for own in (together[:, tensors == i] for i in np.unique(tensors))]
    yield Check("no tensor has less noise than is claimed", min(1.0, len(by_tensor) * min(by_tensor)))
    means = (together.mean(axis=0) ** 2).sum() * len(together)
    yield Check("a release is the clipped sum with noise of mean zero", float(chi2.sf(means, together.shape[1])))

    def unrelated(name: str, rows: np.ndarray) -> Check:
        """Of two rows that are independent, the product over the length of one is standard normal."""
        products = np.abs(rows @ rows.T) / np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
        pairs = products[np.triu_indices(len(rows), 1)]
        return Check(name, min(1.0, pairs.size * float(2 * norm.sf(pairs.max()))) if pairs.size else 1.0)

    some = np.concatenate([own[: MOST_COMPARED // 2] for own in residuals])
    yield unrelated("each step of each run has noise of its own", some)
    yield unrelated("each number has noise of its own", together.T[:MOST_COMPARED])
    far = int((np.abs(together) > FAR).sum())
    yield Check("noise is not cut off", float(binomtest(far, together.size, 2 * norm.sf(FAR)).pvalue))
    yield Check("noise is Gaussian", float(kstest(together.ravel()[: MOST_NUMBERS * 10], "norm").pvalue))
