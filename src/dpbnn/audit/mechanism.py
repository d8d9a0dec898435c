"""What one step really releases: how far a person can move it, and how much noise it has.

    release = clipped sum + noise        D = how far a person moves the clipped sum

The attacker knows everything but whether one person is there: weights, all other records, and the person's. The best
score is then <release, D> / |D|, and only the noise in units of |D| protects the person. Both are measured on the code
that trains: sampling (at rate 1), the clipping engine and `add_noise`, through the steps of a real run.

    noise      every number of every release, less the clipped sum, is one observation
    |D|        canaries that are far out, near zero, and in single inputs reach all layers, at several places in a batch
    scores     with and without the worst canary, end to end: an attack that does not know what noise looks like
    levels     all levels of noise and clipping are attacked alike, each with its share of the releases
    training   how weights move, step by step, with records and without any
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from dpbnn.audit.attack import OTHERS, ROUNDING, Attack, Target
from dpbnn.audit.bounds import epsilon_by_counts, noise_multiplier_bounds, spread_bounds
from dpbnn.audit.checks import ALARM, Check, Checked
from dpbnn.audit.claim import epsilon_shown
from dpbnn.audit.noise import checks_of_noise
from dpbnn.device.execution import Execution
from dpbnn.methods import SGD, Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["MechanismAudit", "audit_mechanism"]


@dataclass(frozen=True)
class MechanismAudit(Checked):
    """What an attack on single steps shows, and what follows for a run.

    Args:
        engine: the clipping engine, as `clipping` is the clipping style.
        levels: how many levels of noise and clipping were attacked.
        form: "ordinary", or "joint BBP" where mean and spread of the weights are clipped together.
        records: the size of a batch.
        observations: how many numbers of releases were used.
        claimed_noise_multiplier: the plan's, in its first step.
        noise_multiplier: bounds on the real one, at the confidence.
        claimed_epsilon: the plan's, for all its steps.
        epsilon: a lower bound on the real one, at the confidence.
        epsilon_by_counts: the same for one step at rate 1, from end-to-end scores, for noise of any shape.
        furthest: how far the person moves the clipped sum, in clip norms.
        checks: what must hold.
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
    """Attack single steps of a run. All records are synthetic: only shapes and types of `x` and `y` are used.

    The attack has the plan's clipping style, levels and rows per person; `others` counts records beside the person's.

    Guarantees:
        The epsilon shown is above the true one with a probability of at most ``1 - confidence``, if noise is
            Gaussian and alike in all tensors and levels.
    """
    attack = Attack(Target(model, likelihood, x, y, plan, method or SGD(1.0), execution, others), observations)
    worst, furthest, checks = _reached(attack)
    inside, outside = attack.releases(worst)
    residuals = [np.stack(side.residuals) for side in (inside, outside)]
    scores = [np.array(side.scores).reshape(len(attack.levels), -1) for side in (inside, outside)]
    spread = spread_bounds(np.concatenate(residuals), confidence)
    low, high = (bound / (furthest / attack.rows) for bound in spread)
    claimed, noise, cost = plan.epsilon(), attack.levels[0].noise, epsilon_shown(plan)
    complete = [np.concatenate(side.complete) for side in (inside, outside)]
    checks = [
        Check("the claimed epsilon is no less than what the claimed noise costs", float(cost <= claimed)),
        Check("a sum over no records is zero", float(not attack.sum_of_nothing.any())),
        Check("records that are no numbers move nothing", float(attack.ignores_nan_and_infinity())),
        Check("types of a release do not tell who is in it", float(inside.types == outside.types)),
        *checks,
        _end_to_end(attack, *scores),
        *checks_of_noise(residuals, attack.tensors, complete, attack.bare_noise()),
        attack.followed("training moves weights by noisy sums alone", attack.others),
        attack.followed("steps without a record have noise too", attack.nothing),
    ]
    return MechanismAudit(
        engine=attack.checked.engine,
        clipping=plan.clipping,
        levels=len(attack.levels),
        rows_per_person=attack.rows,
        form=attack.form,
        records=others + attack.rows,
        weights=attack.weights,
        observations=sum(numbers.size for numbers in residuals),
        claimed_noise_multiplier=noise,
        noise_multiplier=(noise * low, noise * high),
        claimed_epsilon=claimed,
        epsilon=epsilon_shown(plan, high),
        epsilon_by_counts=epsilon_by_counts(scores[0][0], scores[1][0], plan.delta, confidence),
        furthest=furthest,
        checks=tuple(checks),
    )


def _reached(attack: Attack) -> tuple[int, float, list[Check]]:
    """The canary that moves the sum most, how far the person then moves it, in clip norms, and what must hold."""
    norm, rows = attack.levels[0].clip_norm, attack.rows
    moves = [float(move.norm()) / norm for move in attack.moves()]
    worst = max(range(len(moves)), key=lambda index: moves[index])
    of_levels, noise_of_levels = attack.at_every_level(worst)
    of_row = max(moves[worst], of_levels, *(length / norm for length in attack.lengths_elsewhere(worst)))
    of_person = float(attack.move_of(attack.canary(worst, rows)).norm()) / norm
    checks = [
        noise_of_levels,
        Check("no canary moves the sum by more than the clip norm", float(of_row <= 1 + ROUNDING)),
    ]
    if rows == 1:
        return worst, max(of_person, of_row), checks
    name = f"no person moves the sum by more than {rows} clip norms"
    return worst, of_person, [*checks, Check(name, float(of_person <= rows * (1 + ROUNDING)))]


def _end_to_end(attack: Attack, inside: np.ndarray, outside: np.ndarray) -> Check:
    """By the scores ``[levels, releases]`` alone, the noise of no level is almost certainly less than claimed."""
    sure = 1 - ALARM / len(attack.levels)
    shown = [noise_multiplier_bounds(*scores, confidence=sure)[1] for scores in zip(inside, outside, strict=True)]
    hidden = [noise * attack.rows >= level.noise for noise, level in zip(shown, attack.levels, strict=True)]
    return Check("end to end, a person is hidden by the noise that is claimed", float(all(hidden)))
