"""Single steps of one run, for an attacker who knows all records: sums before the noise, releases, weights.

Sums, releases and weights come as one vector in float64 on the CPU, with the tensors in the order of their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from dpbnn.clipping import clip_and_sum
from dpbnn.methods import SGD
from dpbnn.models.likelihoods import HomoscedasticGaussian
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.loop import steps_of
from dpbnn.training.run import Run, prepared
from dpbnn.training.steps import Steps
from dpbnn.types import ClippedSum, Draws, NoisySum

__all__ = ["Probe", "flat", "linear_probe"]


class Probe:
    """A run from `first_step` on; only `advance` moves its weights."""

    def __init__(self, run: Run, first_step: int = 0) -> None:
        self._position = replace(run.begin(), step=first_step)
        self.work, self.state = run.work, self._position.state

    @cached_property
    def _steps(self) -> Steps:
        return steps_of([self._position])

    def released(self, step: int) -> NoisySum:
        """What the step makes public; steps come in their order."""
        return self._steps.release(step)[0]

    def advance(self, step: int) -> None:
        """Take the step as `fit` does."""
        self._steps.release_and_take(step)
        self.state = self._steps.states[0]

    def clipped(self, step: int, rows: Sequence[int] | None = None) -> Tensor:
        """The sum over the step's batch, or over some of its rows, before noise is added."""
        work = self.work
        work.method.begin_step(self.state, step)
        x, y = (part.to(work.device) for part in next(iter(work.records.batches(work.sampler, step, step + 1, 0))))
        if rows is not None:
            x, y = x[list(rows)], y[list(rows)]
        return flat(self.clipped_sum(step, x, y).gradients)

    def clipped_sum(self, step: int, x: Tensor, y: Tensor) -> ClippedSum:
        """The sum that the step would add noise to, if its batch were these records."""
        where, masks = self.work.method.weights(self.state, step), self.work.randomness.masks(step)
        return clip_and_sum(self.work.checked, where, x, y, self.work.clipping_at(step), masks=masks)

    def weights(self, step: int) -> Tensor:
        """Where the step takes gradients, for methods with one draw of the weights."""
        weights = self.work.method.weights(self.state, step)
        assert not isinstance(weights, Draws)
        return flat(weights)

    @cached_property
    def is_fixed(self) -> bool:
        """Whether every step takes gradients at the same weights with the same masks."""
        return torch.equal(self.clipped(0), self.clipped(1))


def linear_probe(x: Tensor, y: Tensor, plan: PrivacyPlan) -> Probe:
    """A run of one linear layer whose weights are zero: a record's gradient is its input times minus its target."""
    model = nn.Linear(x.shape[1], 1, bias=False, device="cuda" if torch.cuda.is_available() else None)
    nn.init.zeros_(model.weight)
    return Probe(prepared(model, x, y, SGD(1.0), plan, HomoscedasticGaussian(1.0), seed=0))


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All tensors as one vector."""
    return torch.cat([tensors[name].detach().double().cpu().ravel() for name in sorted(tensors)])
