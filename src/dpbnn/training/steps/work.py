"""What the steps of a run need, eager or captured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dpbnn.clipping import CheckedModel, ClippingSettings, refuse_inexact_sums
from dpbnn.clipping.objective import wide
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.data.records import Records
from dpbnn.device.execution import Execution
from dpbnn.methods import Method
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler, largest_batch
from dpbnn.privacy.noise.source import NOISE_SOURCES, NoiseSource, foreign_source
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training.diagnostics import Diagnostics
from dpbnn.types import Weights

__all__ = ["Work"]


@dataclass
class Work:
    """One run with its secret draws; `seed` is the user's and never reaches sampling, noise or masks.

    `sum_over_processes` is the seam for training in several processes: it is given the clipped sums of this process, in
    float64 and before they get their noise, and writes those of all processes over them (docs/extending.md).
    """

    checked: CheckedModel
    records: Records
    method: Method[Any]
    plan: PrivacyPlan
    execution: Execution
    diagnostics: Diagnostics
    randomness: Randomness
    seed: int
    sum_over_processes: Callable[[Mapping[str, Tensor]], None] | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.checked.objective.model.parameters()).device

    @property
    def largest_batch(self) -> int:
        """The largest batch by the plan: what follows from it must not depend on the records."""
        return largest_batch(self.plan.dataset_size, self.plan.sampling_rate)

    @property
    def in_float64(self) -> bool:
        """Whether sums, as those of many records or several processes, stay float64 until they have their noise."""
        return self.largest_batch > LARGEST_PART or self.sum_over_processes is not None

    @property
    def sampler(self) -> PoissonSampler:
        """Draws the batches."""
        return PoissonSampler(len(self.records), self.plan.sampling_rate, self.randomness)

    @cached_property
    def noise(self) -> NoiseSource:
        """Draws the noise, keyed by this run's randomness."""
        return NOISE_SOURCES[self.execution.noise](self.randomness)

    @property
    def random_source(self) -> str:
        """What the guarantee says of all secret draws."""
        module = foreign_source(self.execution.noise)
        origin = f" (of the module {module}, which is not part of dpbnn)" if module else ""
        sampling, noise = self.randomness.source, self.noise.source + origin
        return sampling if noise == sampling else f"{sampling}; noise: {noise}"

    @property
    def voided_by(self) -> tuple[str, ...]:
        """The reasons why there is no guarantee; empty if there is one."""
        reasons = {
            "sampling and noise were seeded by the user (unsafe_seed)": self.randomness.is_seeded_by_user,
            "values without noise were kept (unsafe_diagnostics)": self.diagnostics.enabled,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)

    def clipping_at(self, step: int) -> ClippingSettings:
        """How this step clips and sums, by the plan and the execution."""
        return ClippingSettings(
            self.plan.clip_norm_at(step),
            self.plan.clipping,
            self.execution.micro_batch_size,
            self.execution.precision,
            self.in_float64,
        )

    def add_other_processes(self, sums: Weights) -> None:
        """Add the clipped sums of all other processes to those of this one, in place."""
        if self.sum_over_processes is not None:
            self.sum_over_processes(MappingProxyType(sums))

    def initial_state(self) -> Any:
        """The method's state at the model's initial weights."""
        weights = self.checked.objective.model_weights() | self.checked.likelihood_weights
        return self.method.init({name: wide(values) for name, values in weights.items()}, self.plan, self.seed)

    def check_first_step(self) -> None:
        """Before anything is spent, refuse what the method cannot begin with, and sums that could be inexact."""
        state = self.initial_state()
        if self.in_float64:
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
