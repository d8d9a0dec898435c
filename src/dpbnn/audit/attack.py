"""Runs with and without one person in them, of which only releases are asked for: the weights stay where they are.

A person has as many rows as the plan allows, all of them the same: they move the sum the same way, as far as they can.
All records are in every batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpbnn.audit.checks import Check
from dpbnn.audit.claim import Level, levels_of, repeated
from dpbnn.clipping import CheckedModel, clip_and_sum
from dpbnn.clipping.check.synthetic import synthetic_records
from dpbnn.device.execution import Execution
from dpbnn.methods import SGD, Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.loop import steps_of
from dpbnn.training.run import Run, prepared
from dpbnn.training.steps import Work
from dpbnn.types import ClippedSum, Draws, Weights

__all__ = ["Attack", "Seen", "Target", "clipped_sum"]

SCALES = (0.0, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1e4)
"""What synthetic inputs are multiplied with: gradients of all sizes follow, tiny ones and huge ones."""
TRIED_TARGETS = 4
NO_NUMBERS = (math.nan, math.inf, 1e30)
MOST_RELEASES, FEWEST_RELEASES, FEWEST_OF_A_LEVEL = 4000, 40, 4
MOST_NUMBERS = 4096
"""Of each release that are looked at one by one."""
COMPLETE_NUMBERS = 2**21
"""Of releases that are looked at as a whole."""
PATH_STEPS, FEWEST_PATH_STEPS, PATH_NUMBERS, PATH_MOVE = 16, 4, 20_000, 0.1
"""Of a run that is followed, and how far its noise moves a weight in each step."""
FEW = 20
BARE_NUMBERS = 4_000
"""Of releases of no records that are looked at."""


@dataclass(frozen=True)
class Target:
    """What is attacked; `others` is the number of records beside the person's."""

    model: nn.Module
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    plan: PrivacyPlan
    method: Method[Any]
    execution: Execution | None
    others: int

    def run(self, x: Tensor, y: Tensor, plan: PrivacyPlan | None = None, method: Method[Any] | None = None) -> Run:
        """A run on these records, ready to begin, with all of them in every batch."""
        size: Any = {"dataset_size": max(1, len(x)), "batch_size": max(1, len(x))}
        every = replace(plan or self.plan, **size, pure_epsilons=(), max_records_per_person=1)
        how: Any = {"seed": 0, "execution": self.execution}
        return prepared(self.model, x, y, method or self.method, every, self.likelihood, **how)


@dataclass(frozen=True)
class Seen:
    """What was seen of releases, step by step.

    Args:
        residuals: some numbers, less the clipped sum, in units of the noise that is claimed ``[releases, numbers]``.
        complete: all numbers of the first releases, one after another, in the same units.
        scores: how far each release lies in the direction of the person, in clip norms.
        types: of what is released.
    """

    residuals: np.ndarray
    complete: np.ndarray
    scores: np.ndarray
    types: dict[str, Any]


class Attack:
    """One target, and the canaries for it."""

    def __init__(self, target: Target, observations: int) -> None:
        self.target, self.rows = target, target.plan.max_records_per_person
        self.nothing = target.x[:0], target.y[:0]
        run = target.run(*self.nothing)
        state = run.begin().state
        self.checked = run.work.checked
        self.background, self.canaries = self._records()
        nothing = clipped_sum(run.work, state, 0, *self.nothing).gradients
        self.of_nothing = torch.cat([nothing[name].ravel() for name in sorted(nothing)])
        self.form = "joint BBP" if isinstance(target.method.weights(state, 0), Draws) else "ordinary"
        self.weights = sum(values.numel() for values in self.checked.objective.parameters.values())
        self.chosen, self.tensors = _some_of_each([nothing[name].numel() for name in sorted(nothing)])
        self.levels = levels_of(target.plan)
        releases = min(MOST_RELEASES, max(FEWEST_RELEASES, math.ceil(observations / 2 / len(self.chosen))))
        self.each = max(FEWEST_OF_A_LEVEL, math.ceil(releases / len(self.levels)))
        self.short = self._short(self.each)

    def _records(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The others, and canaries: far out, near zero and in a single input, with targets likely and unlikely."""
        x, y = self.target.x, self.target.y
        others, far = self.target.others, 2 * len(SCALES)
        made_x, made_y = synthetic_records(self.checked.objective, x, y, others + far, self.checked.num_outputs)
        canaries = _far_out(made_x[others:])
        likely = _likely_targets(self.checked, canaries, y)
        return (made_x[:others], made_y[:others]), (
            torch.cat([canaries, canaries]),
            torch.cat([_far_out(made_y[others:]), likely]),
        )

    def _short(self, each: int) -> PrivacyPlan:
        """A plan that has so many steps of each level."""
        noise, norm = (
            repeated([getattr(level, name) for level in self.levels], each) for name in ("noise", "clip_norm")
        )
        steps = each * len(self.levels)
        return replace(self.target.plan, steps=steps, noise_multiplier=noise, clip_norm=norm)

    def _level_of(self, step: int) -> Level:
        return self.levels[step // self.each]

    def _canary(self, index: int, rows: int = 1) -> tuple[Tensor, Tensor]:
        x, y = (values[index : index + 1] for values in self.canaries)
        return torch.cat([x] * rows), torch.cat([y] * rows)

    def _with(self, canary: tuple[Tensor, Tensor] | None, plan: PrivacyPlan | None = None) -> Run:
        records = self.background
        if canary is not None:
            records = torch.cat([records[0], canary[0]]), torch.cat([records[1], canary[1]])
        return self.target.run(*records, plan or self.short)

    @cached_property
    def _others(self) -> range:
        return range(self.target.others)

    def moves(self) -> list[Tensor]:
        """How each canary moves the clipped sum: in one run, so that secret draws of the model are the same.

        Beside few others, as it makes no difference to a canary who they are.
        """
        run = self._with(self.canaries)
        state, few = run.begin().state, list(self._others)[:FEW]
        without = _clipped(run, state, 0, few)
        places = range(self.target.others, self.target.others + len(self.canaries[0]))
        return [_clipped(run, state, 0, [*few, place]) - without for place in places]

    def move_of_person(self, index: int) -> Tensor:
        """How all rows of a person move it together."""
        return self._moved(self._canary(index, self.rows))

    def _moved(self, canary: tuple[Tensor, Tensor]) -> Tensor:
        run = self._with(canary)
        state = run.begin().state
        return _clipped(run, state, 0) - _clipped(run, state, 0, self._others)

    def moves_elsewhere(self, index: int) -> list[float]:
        """How far a canary moves the sum as the first record and in the middle, where nothing is drawn by place."""
        run = self._with(self._canary(index))
        state = run.begin().state
        if not _is_fixed(run, state):
            return []
        others, lengths = list(self._others), []
        for place in (0, len(others) // 2):
            rows = [*others[:place], len(others), *others[place:]]
            lengths.append(float((_clipped(run, state, 0, rows) - _clipped(run, state, 0, others)).norm()))
        return lengths

    def ignores_what_is_no_number(self) -> bool:
        """Whether NaN and infinity in a record leave the sum as it is, or at least within the clip norm."""
        x, y = self._canary(0)
        if not x.is_floating_point():
            return True
        limit = self.levels[0].clip_norm * (1 + 1e-6)
        return all(float(self._moved((torch.full_like(x, bad), y)).norm()) <= limit for bad in NO_NUMBERS)

    def seen(self, index: int, direction: Tensor) -> tuple[Seen, Seen]:
        """Releases with the person in, and without; `direction` is where the person moves a sum that is fixed."""
        units: list[Tensor] = []
        with_person = self._seen(self._with(self._canary(index, self.rows)), direction, units)
        return with_person, self._seen(self._with(None), direction, units)

    def _seen(self, run: Run, direction: Tensor, units: list[Tensor]) -> Seen:
        """Where every step has other weights or masks, the person moves each of them in a direction of its own."""
        position = run.begin()
        steps, state, levels = steps_of([position]), position.state, self.levels
        is_fixed, exact = _is_fixed(run, state), None
        has_units, whole = bool(units), max(1, COMPLETE_NUMBERS // 2 // len(direction))
        residuals, scores, complete = [], [], []
        for step in range(self.short.steps):
            (released,), level = steps.release(step), self._level_of(step)
            if exact is None or not is_fixed or step % self.each == 0:
                exact = _clipped(run, state, step)
            if not is_fixed and not has_units:
                moved = exact - _clipped(run, state, step, self._others)
                units.append(moved / moved.norm().clamp_min(1e-30))
            numbers = _flat(released)
            off = (numbers - exact) / level.scale
            residuals.append(off[self.chosen].numpy())
            complete += [off.float().numpy()] if step < whole else []
            scores.append(float(numbers @ (direction if is_fixed else units[step])) / level.clip_norm)
        assert len(levels) * self.each == len(scores)
        types = {name: values.dtype for name, values in released.gradients.items()}
        return Seen(np.stack(residuals), np.concatenate(complete), np.array(scores), types)

    def bare_noise(self) -> np.ndarray:
        """Numbers of releases of no records, as they come."""
        run = self.target.run(*self.nothing, self.short)
        position = run.begin()
        steps, releases = steps_of([position]), math.ceil(BARE_NUMBERS / len(self.of_nothing))
        taken = range(min(self.each, releases))
        return np.concatenate([_flat(steps.release(step)[0]).numpy()[:BARE_NUMBERS] for step in taken])

    def of_every_level(self, index: int) -> tuple[float, Check]:
        """How far a canary moves the sum at most, in clip norms, and the noise there: first steps, and the last."""
        from scipy.stats import chi2

        chosen = [(level.first_step, level) for level in self.levels]
        chosen.append((self.target.plan.steps - 1, self.levels[-1]))
        run = self._with(self._canary(index), self.target.plan)
        position, furthest, chances = run.begin(), 0.0, []
        for step, level in chosen:
            released = _flat(steps_of([replace(position, step=step)]).release(step)[0])
            exact, without = (_clipped(run, position.state, step, rows) for rows in (None, self._others))
            furthest = max(furthest, float((exact - without).norm()) / level.clip_norm)
            squares = float(((released - exact) / level.scale).square().sum())
            chances.append(float(chi2.cdf(squares, len(released))))
        name = "every level of the plan has its noise, to the last step"
        return furthest, Check(name, min(1.0, len(chances) * min(chances)))

    def path(self, name: str, x: Tensor, y: Tensor) -> Check:
        """Follow weights as `fit` moves them: what they move by, less the clipped sum, is noise of the claimed size."""
        from scipy.stats import chi2

        wanted = max(FEWEST_PATH_STEPS, min(PATH_STEPS, math.ceil(PATH_NUMBERS / self.weights)))
        each = math.ceil(wanted / len(self.levels))
        size = max(1, len(x))
        rate = PATH_MOVE * size / max(level.scale for level in self.levels)
        run, squares, numbers = self.target.run(x, y, self._short(each), SGD(rate)), 0.0, 0
        position = run.begin()
        steps = steps_of([position])
        for step in range(each * len(self.levels)):
            level = self.levels[step // each]
            (state,) = steps.states
            exact, before = _clipped(run, state, step), _weights(run, state, step)
            steps.release_and_take(step)
            released = (before - _weights(run, steps.states[0], step)) * size / rate
            squares += float(((released - exact) / level.scale).square().sum())
            numbers += len(exact)
        return Check(name, float(2 * min(chi2.cdf(squares, numbers), chi2.sf(squares, numbers))))


def _far_out(values: Tensor) -> Tensor:
    """Synthetic inputs or targets at several scales; the second half in a single place of each record."""
    if not values.is_floating_point():
        return values
    scaled = values * torch.tensor(SCALES * 2, dtype=values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    if values[0].numel() > 1:
        flat = scaled.reshape(len(scaled), -1)
        flat[len(SCALES) :, 1:] = 0
    return scaled


def _likely_targets(checked: CheckedModel, x: Tensor, y: Tensor) -> Tensor:
    """Of some synthetic targets of each record the one with the least loss: its gradient is small."""
    objective = checked.objective
    weights = objective.model_weights() | checked.likelihood_weights
    drawn = [objective.likelihood.synthetic_targets(y, len(x), checked.num_outputs) for _ in range(TRIED_TARGETS)]
    device = next(iter(weights.values())).device
    with torch.no_grad():
        outputs = objective.outputs(weights, x.to(device))
        losses = torch.stack([objective.losses(outputs, targets.to(device), weights) for targets in drawn])
    best = losses.nan_to_num(math.inf).argmin(dim=0).to(y.device)
    return torch.stack(drawn)[best, torch.arange(len(x), device=y.device)]


def _is_fixed(run: Run, state: Any) -> bool:
    """Whether every step takes gradients at the same weights with the same masks."""
    return torch.equal(_clipped(run, state, 0), _clipped(run, state, 1))


def _clipped(run: Run, state: Any, step: int, rows: Sequence[int] | None = None) -> Tensor:
    """The clipped sum of all records, or of some rows, as a step would have it before its noise."""
    work = run.work
    work.method.begin_step(state, step)
    x, y = (values.to(work.device) for values in next(iter(work.records.batches(work.sampler, step, step + 1, 0))))
    if rows is not None:
        x, y = x[list(rows)], y[list(rows)]
    return _flat(clipped_sum(work, state, step, x, y))


def clipped_sum(work: Work, state: Any, step: int, x: Tensor, y: Tensor) -> ClippedSum:
    """What a step would give its noise to, of these records."""
    where, masks = work.method.weights(state, step), work.randomness.masks(step)
    return clip_and_sum(work.checked, where, x, y, work.clipping_at(step), masks=masks)


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
    return torch.cat(places), np.repeat(np.arange(len(sizes)), [len(chosen) for chosen in places])
