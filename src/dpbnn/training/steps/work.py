"""What a run's steps need, and what every way of taking them can do."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dpbnn.clipping import CheckedModel, ClippingSettings, clip_and_sum, refuse_inexact_sums
from dpbnn.clipping.objective import wide
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.data.records import DatasetRecords, Records
from dpbnn.device.execution import Execution
from dpbnn.methods import Method
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler, largest_batch
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.diagnostics import Diagnostics
from dpbnn.types import ClippedSum, NoisySum

__all__ = ["Steps", "Work"]


@dataclass(frozen=True)
class Work:
    """One run with its secret draws; `seed` is the user's and never reaches sampling, noise or masks."""

    checked: CheckedModel
    records: Records
    method: Method[Any]
    plan: PrivacyPlan
    execution: Execution
    diagnostics: Diagnostics
    randomness: Randomness
    seed: int

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.checked.objective.model.parameters()).device

    @property
    def size_for_memory(self) -> int:
        """Records for which memory is chosen: the plan's number, or the true one if larger."""
        return max(self.plan.dataset_size, len(self.records))

    @property
    def largest_batch(self) -> int:
        """How many records a batch has at most, by the plan: what follows from it must not depend on the records."""
        return largest_batch(self.plan.dataset_size, self.plan.sampling_rate)

    @property
    def in_float64(self) -> bool:
        """Whether sums stay float64 until they have their noise, as those of many records do."""
        return self.largest_batch > LARGEST_PART

    @property
    def sampler(self) -> PoissonSampler:
        """Draws the batches."""
        return PoissonSampler(len(self.records), self.plan.sampling_rate, self.randomness)

    def clipped(self, state: Any, step: int, x: Tensor, y: Tensor, **how: Any) -> ClippedSum:
        """The clipped sum over these records at this step, as plan and execution say; `how` is for `clip_and_sum`."""
        return clip_and_sum(self.checked, self.method.weights(state, step), x, y, self.clipping_at(step), **how)

    def clipping_at(self, step: int) -> ClippingSettings:
        """How the records of this step are clipped and added up, as plan and execution say."""
        return ClippingSettings(
            self.plan.clip_norm_at(step),
            self.plan.clipping,
            self.execution.micro_batch_size,
            self.execution.precision,
            self.in_float64,
        )

    def initial_state(self) -> Any:
        """The method's, at the model's weights as they are."""
        weights = self.checked.objective.model_weights() | self.checked.likelihood_weights
        return self.method.init({name: wide(values) for name, values in weights.items()}, self.plan, self.seed)

    def refuse_inexact_sums(self) -> None:
        """Refuse, before the first step, a largest batch whose sum could not be exact enough."""
        if self.in_float64:
            state = self.initial_state()
            self.method.begin_step(state, 0)
            x, y = (part.to(self.device) for part in self.records.empty)
            refuse_inexact_sums(
                self.checked,
                self.method.weights(state, 0),
                x,
                y,
                self.largest_batch,
                micro_batch_size=self.execution.micro_batch_size,
                precision=self.execution.precision,
            )

    @property
    def read_when_asked(self) -> bool:
        """Whether reading a batch is the user's code in this process: a `Dataset` that no worker reads."""
        return isinstance(self.records, DatasetRecords) and self.execution.dataset_workers == 0


class Steps(Protocol):
    """Takes the steps of a run in their order."""

    @property
    def how(self) -> str:
        """In words, for the release."""
        ...

    def release(self, state: Any, step: int) -> NoisySum:
        """What this step makes public; the only thing that is learned of the records."""
        ...

    def take(self, state: Any, noisy: NoisySum, step: int) -> Any:
        """The state after it."""
        ...

    def release_and_take(self, state: Any, step: int) -> Any:
        """Both at once, where nobody has to look at what is released: the state after the step."""
        ...
