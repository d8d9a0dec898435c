"""What one step really releases: how far a record can move it, and how much noise is on it.

    release = clipped sum + noise        D = how far a canary moves the clipped sum

The attacker knows everything but whether one record is there: weights, all other records, the record itself. His best
score is then <release, D> / |D|, and all that protects the record is the noise in units of |D|. Both are measured on
the code that trains: sampling (at rate 1), the clipping engine and `add_noise`, through the steps of a real run.

    noise      every number of every release, less the clipped sum, is an observation of it
    |D|        canaries that are far out, at zero, and in single inputs, so that all layers are reached
    scores     with and without the worst canary, end to end: the same without knowing what noise should look like
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from dpbnn.schedule import value_at
from dpbnn.training import Run, prepared, steps_from
from dpbnn.types import Weights

__all__ = ["MechanismAudit", "audit_mechanism"]

BACKGROUND = 3
"""Records beside the canary."""
SCALES = (1.0, 100.0, 1e4, 0.0)
"""What made-up inputs are multiplied with."""
NO_NUMBERS = (math.nan, math.inf, 1e30)
MOST_RELEASES, FEWEST_RELEASES = 4000, 200
MOST_NUMBERS = 4096
"""Of each release that are looked at one by one."""


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
    distance = float(moves[worst].norm())
    seen = [attack.seen(own, moves[worst] / distance, observations) for own in (worst, None)]
    residuals, scores = [own[0] / (noise * clip) for own in seen], [own[1] / clip for own in seen]
    spread = spread_bounds(np.concatenate([own.ravel() for own in residuals]), confidence)
    bounds = noise * spread[0] * clip / distance, noise * spread[1] * clip / distance
    levels = tuple((level * bounds[1] / noise, steps) for level, steps in plan.noise_levels)
    ends = noise_multiplier_bounds(scores[0], scores[1], confidence=1 - ALARM)
    checks = [
        Check("no canary moves the sum by more than the clip norm", float(distance <= clip * (1 + 1e-6))),
        Check("a sum over no records is zero", float(not attack.of_nothing.any())),
        Check("records that are no numbers move nothing", float(attack.ignores_what_is_no_number())),
        Check("end to end, a canary is hidden by the noise that is claimed", float(ends[1] >= noise)),
        *_checks_of_noise(residuals, attack.tensors),
    ]
    return MechanismAudit(
        engine=attack.engine,
        observations=sum(own.size for own in residuals),
        claimed_noise_multiplier=noise,
        noise_multiplier=bounds,
        claimed_epsilon=plan.epsilon(),
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
        run = self._run(x[:0], y[:0])
        checked = run.work.checked
        made_up = made_up_records(checked.objective, x, y, BACKGROUND + 2 * len(SCALES), checked.num_outputs)
        self.engine = checked.engine
        self.background = made_up[0][:BACKGROUND], made_up[1][:BACKGROUND]
        self.canaries = _far_out(made_up[0][BACKGROUND:]), _far_out(made_up[1][BACKGROUND:])
        nothing = run.work.clipped(run.begin().state, 0, x[:0], y[:0]).gradients
        self.of_nothing = torch.cat([nothing[name].ravel() for name in sorted(nothing)])
        self.chosen, self.tensors = _some_of_each([nothing[name].numel() for name in sorted(nothing)])

    def _run(self, x: Tensor, y: Tensor) -> Run:
        model, method, plan, likelihood, execution = self._make
        return prepared(model, x, y, method, plan, likelihood, seed=0, execution=execution)

    def _with(self, canary: tuple[Tensor, Tensor] | None) -> Run:
        x, y = self.background
        return (
            self._run(x, y)
            if canary is None
            else self._run(*(torch.cat(own) for own in zip((x, y), canary, strict=True)))
        )

    def _canary(self, index: int) -> tuple[Tensor, Tensor]:
        return self.canaries[0][index : index + 1], self.canaries[1][index : index + 1]

    def move(self, index: int) -> Tensor:
        """How far a canary moves the clipped sum."""
        return self._moved(self._canary(index))

    def _moved(self, canary: tuple[Tensor, Tensor]) -> Tensor:
        """In one and the same run, so that secret draws of the model, such as dropout masks, are the same."""
        run = self._with(canary)
        state = run.begin().state
        return _clipped(run, state, 0) - _clipped(run, state, 0, BACKGROUND)

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


def _clipped(run: Run, state: Any, step: int, records: int | None = None) -> Tensor:
    """The clipped sum of all records, or the first ones, as a step would have it before its noise."""
    work = run.work
    work.randomness.seed_model(step, work.device)
    work.method.begin_step(state, step)
    x, y = (own.to(work.device) for own in next(iter(work.records.batches(work.sampler, step, step + 1, 0))))
    return _flat(work.clipped(state, step, x[:records], y[:records]))


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
    from scipy.stats import chi2, kstest, norm

    together = np.concatenate(residuals)
    by_tensor = [chi2.cdf((own**2).sum(), own.size) for own in (together[:, tensors == i] for i in np.unique(tensors))]
    yield Check("no tensor has less noise than is claimed", min(1.0, len(by_tensor) * min(by_tensor)))
    means = (together.mean(axis=0) ** 2).sum() * len(together)
    yield Check("a release is the clipped sum with noise of mean zero", float(chi2.sf(means, together.shape[1])))

    def unrelated(name: str, first: np.ndarray, second: np.ndarray) -> Check:
        return Check(name, float(2 * norm.sf(abs((first * second).sum()) / math.sqrt(first.size))))

    yield unrelated("each step has noise of its own", together[:-1], together[1:])
    fewest = min(map(len, residuals))
    yield unrelated("each run has noise of its own", residuals[0][:fewest], residuals[1][:fewest])
    if together.shape[1] > 1:
        yield unrelated("each number has noise of its own", together[:, :-1], together[:, 1:])
    yield Check("noise is Gaussian", float(kstest(together.ravel()[: MOST_NUMBERS * 10], "norm").pvalue))
