"""Runs with and without one person: how far canaries move the clipped sum, and what steps release.

A person has as many rows as the plan allows. All are equal, so that they move the sum the same way, as far as they can.
All records are in every batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from dpbnn.audit.canaries import Records, canaries_and_others
from dpbnn.audit.checks import Check
from dpbnn.audit.claim import levels_of, repeated
from dpbnn.audit.probe import Probe, flat
from dpbnn.device.execution import Execution
from dpbnn.methods import SGD, Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.run import Run, prepared
from dpbnn.types import Draws

__all__ = ["OTHERS", "Attack", "Releases", "Target"]

OTHERS = 20
"""Records beside the person's."""
NOT_FINITE = (math.nan, math.inf, 1e30)
"""Values that fill a whole record; squares of the last one overflow float32."""
ROUNDING = 1e-6
MOST_RELEASES, FEWEST_RELEASES, FEWEST_OF_A_LEVEL = 4000, 40, 4
MOST_NUMBERS = 4096
"""The most numbers of each release that are used one by one."""
COMPLETE_NUMBERS = 2**21
"""How many numbers of complete releases are used."""
PATH_STEPS, FEWEST_PATH_STEPS, PATH_NUMBERS, PATH_MOVE = 16, 4, 20_000, 0.1
"""The length of a run that is followed, and how far its noise moves a weight in each step."""
FEW = 20
"""How many others are in the batch when the moves of canaries are compared: who they are makes no difference."""
BARE_NUMBERS = 4_000
"""How many numbers of releases of no records are used."""


@dataclass(frozen=True)
class Target:
    """What is attacked: the arguments of `audit_mechanism`; `others` is the number of records beside the person's."""

    model: nn.Module
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    plan: PrivacyPlan
    method: Method[Any] = field(default_factory=lambda: SGD(1.0))
    execution: Execution | None = None
    others: int = OTHERS

    def run(self, x: Tensor, y: Tensor, plan: PrivacyPlan, method: Method[Any] | None = None) -> Run:
        """A run on these records, ready to begin, with all of them in every batch."""
        size: Any = {"dataset_size": max(1, len(x)), "batch_size": max(1, len(x))}
        every = replace(plan, **size, pure_epsilons=(), max_records_per_person=1)
        how: Any = {"seed": 0, "execution": self.execution}
        return prepared(self.model, x, y, method or self.method, every, self.likelihood, **how)


@dataclass
class Releases:
    """The releases of a run, step by step.

    Args:
        residuals: the noise on some numbers of each release, in units of the claimed noise.
        complete: the noise on all numbers of the first releases, in the same units.
        scores: how far each release lies in the direction of the person, in clip norms.
        types: the dtypes of a release.
    """

    residuals: list[np.ndarray] = field(default_factory=list)
    complete: list[np.ndarray] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: dict[str, torch.dtype] = field(default_factory=dict)


class Attack:
    """A target with its canaries; every level of the attacked plan has `steps_per_level` steps."""

    def __init__(self, target: Target, observations: int) -> None:
        self.target, self.rows = target, target.plan.max_records_per_person
        self.nothing = target.x[:0], target.y[:0]
        probe = Probe(target.run(*self.nothing, target.plan))
        self.checked = probe.work.checked
        self.canaries, self.others = canaries_and_others(self.checked, *self.nothing, target.others)
        of_nothing = probe.clipped_sum(0, *self.nothing).gradients
        self.sum_of_nothing = flat(of_nothing)
        self.form = "joint BBP" if isinstance(target.method.weights(probe.state, 0), Draws) else "ordinary"
        self.weights = sum(values.numel() for values in self.checked.objective.parameters.values())
        self.places, self.tensors = _some_of_each([of_nothing[name].numel() for name in sorted(of_nothing)])
        self.levels = levels_of(target.plan)
        releases = min(MOST_RELEASES, max(FEWEST_RELEASES, math.ceil(observations / 2 / len(self.places))))
        self.steps_per_level = max(FEWEST_OF_A_LEVEL, math.ceil(releases / len(self.levels)))
        self.plan = self._with_steps(self.steps_per_level)

    def _with_steps(self, each: int) -> PrivacyPlan:
        """The plan with `each` steps of every level."""
        noise = repeated([level.noise for level in self.levels], each)
        norm = repeated([level.clip_norm for level in self.levels], each)
        return replace(self.target.plan, steps=each * len(self.levels), noise_multiplier=noise, clip_norm=norm)

    def canary(self, index: int, rows: int = 1) -> Records:
        """One canary, as `rows` equal rows."""
        x, y = (values[[index] * rows] for values in self.canaries)
        return x, y

    def _beside(self, records: Records, plan: PrivacyPlan | None = None) -> Run:
        """A run on the others, followed by these records."""
        x, y = (torch.cat(parts) for parts in zip(self.others, records, strict=True))
        return self.target.run(x, y, plan or self.plan)

    def moves(self) -> list[Tensor]:
        """How each canary moves the clipped sum: in one run, so that secret draws of the model are the same."""
        probe, others = Probe(self._beside(self.canaries)), self.target.others
        few, canaries = range(min(others, FEW)), range(others, others + len(self.canaries[0]))
        without = probe.clipped(0, few)
        return [probe.clipped(0, [*few, canary]) - without for canary in canaries]

    def move_of(self, records: Records) -> Tensor:
        """How these records move the clipped sum together."""
        probe = Probe(self._beside(records))
        return probe.clipped(0) - probe.clipped(0, range(self.target.others))

    def lengths_elsewhere(self, index: int) -> Iterator[float]:
        """How far a canary moves the sum as the first record and in the middle, if no weights or masks are drawn."""
        probe, others = Probe(self._beside(self.canary(index))), list(range(self.target.others))
        for place in (0, len(others) // 2) if probe.is_fixed else ():
            rows = [*others[:place], len(others), *others[place:]]
            yield float((probe.clipped(0, rows) - probe.clipped(0, others)).norm())

    def ignores_nan_and_infinity(self) -> bool:
        """Whether NaN and infinity in a record leave the sum as it is, or at least within the clip norm."""
        x, y = self.canary(0)
        if not x.is_floating_point():
            return True
        limit = self.levels[0].clip_norm * (1 + ROUNDING)
        return all(float(self.move_of((torch.full_like(x, bad), y)).norm()) <= limit for bad in NOT_FINITE)

    def at_every_level(self, index: int) -> tuple[float, Check]:
        """In each level's first step and the last step: how far a canary moves the sum, in clip norms; the noise."""
        run, furthest, chances = self._beside(self.canary(index), self.target.plan), 0.0, []
        last = self.target.plan.steps - 1, self.levels[-1]
        for step, level in [*((level.first_step, level) for level in self.levels), last]:
            probe = Probe(run, step)
            released = flat(probe.released(step).gradients)
            exact, without = probe.clipped(step), probe.clipped(step, range(self.target.others))
            furthest = max(furthest, float((exact - without).norm()) / level.clip_norm)
            squares = float(((released - exact) / level.scale).square().sum())
            chances.append(float(chi2.cdf(squares, len(released))))
        name = "every level of the plan has its noise, to the last step"
        return furthest, Check(name, min(1.0, len(chances) * min(chances)))

    def releases(self, index: int) -> tuple[Releases, Releases]:
        """Releases with a person in them who is this canary, and releases without.

        Where every step has other weights or masks, the person moves each of them in a direction of its own.
        """
        probes = [Probe(self._beside(self.canary(index, rows))) for rows in (self.rows, 0)]
        is_fixed, sides = probes[0].is_fixed, (Releases(), Releases())
        for step in range(self.plan.steps):
            level = self.levels[step // self.steps_per_level]
            if step % self.steps_per_level == 0 or not is_fixed:
                sums = [probe.clipped(step) for probe in probes]
                move = sums[0] - probes[0].clipped(step, range(self.target.others))
                direction = move / move.norm().clamp_min(1e-30)
            for side, probe, clipped in zip(sides, probes, sums, strict=True):
                released = probe.released(step).gradients
                numbers = flat(released)
                noise = (numbers - clipped) / level.scale
                side.residuals.append(noise[self.places].numpy())
                if step < max(1, COMPLETE_NUMBERS // 2 // len(noise)):
                    side.complete.append(noise.float().numpy())
                side.scores.append(float(numbers @ direction) / level.clip_norm)
                side.types = {name: values.dtype for name, values in released.items()}
        return sides

    def bare_noise(self) -> np.ndarray:
        """Some numbers of releases of no records."""
        probe = Probe(self.target.run(*self.nothing, self.plan))
        steps = range(min(self.steps_per_level, math.ceil(BARE_NUMBERS / len(self.sum_of_nothing))))
        return np.concatenate([flat(probe.released(step).gradients).numpy()[:BARE_NUMBERS] for step in steps])

    def followed(self, name: str, records: Records) -> Check:
        """Follow weights as `fit` moves them: each move, less the clipped sum, is noise of the claimed size."""
        steps = max(FEWEST_PATH_STEPS, min(PATH_STEPS, math.ceil(PATH_NUMBERS / self.weights)))
        each, size = math.ceil(steps / len(self.levels)), max(1, len(records[0]))
        rate = PATH_MOVE * size / max(level.scale for level in self.levels)
        probe, squares, numbers = Probe(self.target.run(*records, self._with_steps(each), SGD(rate))), 0.0, 0
        for step in range(each * len(self.levels)):
            clipped, before = probe.clipped(step), probe.weights(step)
            probe.advance(step)
            released = (before - probe.weights(step)) * size / rate
            squares += float(((released - clipped) / self.levels[step // each].scale).square().sum())
            numbers += len(clipped)
        return Check(name, float(2 * min(chi2.cdf(squares, numbers), chi2.sf(squares, numbers))))


def _some_of_each(sizes: list[int]) -> tuple[Tensor, np.ndarray]:
    """Places of some numbers of each tensor, and which tensor each belongs to."""
    share, starts = max(1, MOST_NUMBERS // len(sizes)), np.cumsum([0, *sizes])
    places = [start + torch.randperm(size)[:share] for start, size in zip(starts, sizes, strict=False)]
    return torch.cat(places), np.repeat(np.arange(len(sizes)), [len(chosen) for chosen in places])
