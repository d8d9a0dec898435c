"""What one step really releases: how far a person can move it, and how much noise is on it.

    release = clipped sum + noise        D = how far a person moves the clipped sum

The attacker knows everything but whether one person is there: weights, all other records, the person's own. His best
score is then <release, D> / |D|, and all that protects the person is the noise in units of |D|. Both are measured on
the code that trains: sampling (at rate 1), the clipping engine and `add_noise`, through the steps of a real run.

    noise      every number of every release, less the clipped sum, is an observation of it
    |D|        canaries that are far out, near zero, and in single inputs, so that all layers are reached; in all places
    scores     with and without the worst canary, end to end: the same without knowing what noise should look like
    levels     of noise and clipping are attacked alike, each with its share of the releases
    training   how weights move, step by step, with records and without any
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from dpbnn.audit.attack import Attack, Seen, Target
from dpbnn.audit.bounds import epsilon_by_counts, noise_multiplier_bounds, spread_bounds
from dpbnn.audit.checks import ALARM, Check
from dpbnn.audit.claim import epsilon_shown
from dpbnn.audit.noise import checks_of_noise
from dpbnn.device.execution import Execution
from dpbnn.methods import SGD, Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["MechanismAudit", "audit_mechanism"]

OTHERS = 20
"""Records beside the person's."""
ROUNDING = 1e-6


@dataclass(frozen=True)
class MechanismAudit:
    """What was seen of single steps, and what follows for a run.

    Args:
        engine: of clipping.
        clipping: the style of clipping.
        levels: how many levels of noise and clipping were attacked.
        rows_per_person: how many rows the person has.
        form: "ordinary", or "joint BBP" where mean and spread of the weights are clipped together.
        records: in a batch.
        weights: that are trained.
        observations: numbers in releases that were looked at.
        claimed_noise_multiplier: by the plan, in its first step.
        noise_multiplier: bounds on the real one, at the confidence.
        claimed_epsilon: by the plan, of all its steps.
        epsilon: at least this, at the confidence.
        epsilon_by_counts: of one step at rate 1, from end-to-end scores, without assuming a shape of the noise.
        furthest: how far the person moves the clipped sum, in clip norms.
        checks: what must be so.
    """

    engine: str
    clipping: str
    levels: int
    rows_per_person: int
    form: str
    records: int
    weights: int
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
    others: int = OTHERS,
) -> MechanismAudit:
    """Attack single steps of a run. Of `x` and `y` only shapes and types are used: all records are made up.

    The attack has the plan's clipping style, levels and rows per person; `others` are the records beside the person's.

    Guarantees:
        The epsilon shown is above the true one with a probability of at most ``1 - confidence``, if noise is
            Gaussian and alike in all tensors and levels.
    """
    attack = Attack(Target(model, likelihood, x, y, plan, method or SGD(1.0), execution, others), observations)
    reached = _Reach.of(attack)
    seen = attack.seen(reached.worst, reached.direction)
    spread = spread_bounds(np.concatenate([side.residuals.ravel() for side in seen]), confidence)
    low, high = (bound / (reached.of_person / attack.rows) for bound in spread)
    claimed, noise = plan.epsilon(), attack.levels[0].noise
    in_first = [side.scores[: attack.each] for side in seen]
    return MechanismAudit(
        engine=attack.checked.engine,
        clipping=plan.clipping,
        levels=len(attack.levels),
        rows_per_person=attack.rows,
        form=attack.form,
        records=others + attack.rows,
        weights=attack.weights,
        observations=sum(side.residuals.size for side in seen),
        claimed_noise_multiplier=noise,
        noise_multiplier=(noise * low, noise * high),
        claimed_epsilon=claimed,
        epsilon=epsilon_shown(plan, high),
        epsilon_by_counts=epsilon_by_counts(in_first[0], in_first[1], plan.delta, confidence),
        furthest=reached.of_person,
        checks=tuple(_checks(attack, reached, seen, claimed)),
    )


def _checks(attack: Attack, reached: "_Reach", seen: tuple[Seen, Seen], claimed: float) -> Iterator[Check]:
    costs = epsilon_shown(attack.target.plan)
    yield Check("the claimed epsilon is no less than what the claimed noise costs", float(costs <= claimed))
    yield from reached.checks(attack.rows)
    yield Check("a sum over no records is zero", float(not attack.of_nothing.any()))
    yield Check("records that are no numbers move nothing", float(attack.ignores_what_is_no_number()))
    yield Check("types of a release do not tell who is in it", float(seen[0].types == seen[1].types))
    yield _end_to_end(attack, seen)
    residuals, complete = [side.residuals for side in seen], [side.complete for side in seen]
    yield from checks_of_noise(residuals, attack.tensors, complete, attack.bare_noise())
    yield reached.noise_of_levels
    yield attack.path("training moves weights by noisy sums alone", *attack.background)
    yield attack.path("steps without a record have noise too", *attack.nothing)


@dataclass(frozen=True)
class _Reach:
    """How far canaries move a clipped sum, in clip norms: `worst` is the one that moves it most, by `direction`."""

    worst: int
    direction: Tensor
    of_row: float
    of_person: float
    noise_of_levels: Check

    @staticmethod
    def of(attack: Attack) -> "_Reach":
        moves = attack.moves()
        worst = max(range(len(moves)), key=lambda index: float(moves[index].norm()))
        together = attack.move_of_person(worst)
        norm = attack.levels[0].clip_norm
        elsewhere = [float(moves[worst].norm()), *attack.moves_elsewhere(worst)]
        at_levels, noise = attack.of_every_level(worst)
        of_row = max(*(length / norm for length in elsewhere), at_levels)
        of_person = float(together.norm()) / norm
        of_person = max(of_person, of_row) if attack.rows == 1 else of_person
        return _Reach(worst, together / together.norm(), of_row, of_person, noise)

    def checks(self, rows: int) -> list[Check]:
        row = Check("no canary moves the sum by more than the clip norm", float(self.of_row <= 1 + ROUNDING))
        if rows == 1:
            return [row]
        name = f"no person moves the sum by more than {rows} clip norms"
        return [row, Check(name, float(self.of_person <= rows * (1 + ROUNDING)))]


def _end_to_end(attack: Attack, seen: tuple[Seen, Seen]) -> Check:
    """Scores alone, at each level: with near certainty the noise is no less than is claimed."""
    hidden = []
    for index, level in enumerate(attack.levels):
        steps = slice(index * attack.each, (index + 1) * attack.each)
        sure = 1 - ALARM / len(attack.levels)
        shown = noise_multiplier_bounds(seen[0].scores[steps], seen[1].scores[steps], confidence=sure)[1]
        hidden.append(shown * attack.rows >= level.noise)
    return Check("end to end, a person is hidden by the noise that is claimed", float(all(hidden)))
