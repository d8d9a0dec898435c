"""Targets of attacks on single steps: the plan as it is, in networks of all kinds, and the code with other settings.

Any two values of the settings in `COVERING` meet in at least one target.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.audit.attack import Target
from dpbnn.audit.claim import levels_of
from dpbnn.device.execution import Execution
from dpbnn.methods import BBP
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from dpbnn.models.networks import CNN, MLP
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["COVERING", "FOR_QUICK", "Variation", "counted", "targets_of", "variations_of"]

LARGE_BATCH = 4096
"""Records beside the person's, whose rows take the batch beyond what is summed in float32."""
MORE_NOISE, LARGER_NORM = 1.25, 2.0
"""The second level of noise and clipping, in units of the first."""


@dataclass(frozen=True)
class Variation:
    """Settings that replace the plan's; a plan with them makes a claim of its own."""

    clipping: str
    levels: int
    rows_per_person: int
    is_joint: bool
    is_large_batch: bool
    is_wide: bool

    @property
    def name(self) -> str:
        """The settings in words."""
        kinds = {"joint BBP": self.is_joint, "large batch": self.is_large_batch, "wide": self.is_wide}
        counts = counted(self.levels, "level"), counted(self.rows_per_person, "row")
        return ", ".join([f"{self.clipping} clipping", *counts, *(name for name, holds in kinds.items() if holds)])

    def plan(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan with these settings."""
        steps, first = max(plan.steps, self.levels), levels_of(plan)[0]
        noise: Any = first.noise
        norm: Any = first.clip_norm
        if self.levels == 2:
            half = steps // 2
            noise = (noise, half), (noise * MORE_NOISE, steps - half)
            norm = (norm, half), (norm * LARGER_NORM, steps - half)
        return replace(
            plan,
            steps=steps,
            noise_multiplier=noise,
            clip_norm=norm,
            clipping=self.clipping,
            max_records_per_person=self.rows_per_person,
            dataset_size=max(plan.dataset_size, self.rows_per_person),
            pure_epsilons=(),
        )

    def target(self, plan: PrivacyPlan) -> Target:
        """A network that is trained under the plan with these settings."""
        columns, hidden = (800, 660) if self.is_wide else (6, 16)
        how: dict[str, Any] = {"others": LARGE_BATCH} if self.is_large_batch else {}
        if self.is_joint:
            how["method"] = BBP(1.0, form="joint", num_draws=2)
        x, y = torch.zeros(0, columns), torch.zeros(0, dtype=torch.long)
        return Target(MLP(columns, [hidden], 3), Categorical(), x, y, self.plan(plan), **how)


COVERING = (
    Variation("flat", 1, 1, is_joint=False, is_large_batch=False, is_wide=False),
    Variation("automatic", 1, 3, is_joint=True, is_large_batch=False, is_wide=True),
    Variation("flat", 2, 1, is_joint=True, is_large_batch=False, is_wide=True),
    Variation("automatic", 2, 1, is_joint=False, is_large_batch=True, is_wide=True),
    Variation("flat", 2, 3, is_joint=True, is_large_batch=True, is_wide=False),
    Variation("automatic", 1, 3, is_joint=False, is_large_batch=True, is_wide=False),
)
FOR_QUICK = (COVERING[0], COVERING[1], COVERING[4])
"""Each value occurs at least once."""


def variations_of(plan: PrivacyPlan, quick: bool) -> dict[str, Target]:
    """The same code with settings other than the plan's, by what they are."""
    return {variation.name: variation.target(plan) for variation in (FOR_QUICK if quick else COVERING)}


class _Bare(nn.Module):
    """Its parameters belong to no layer, so that gradients of single records are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.level = nn.Parameter(0.1 * torch.randn(6, 16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) @ self.slopes + self.level


class _RecurrentNetwork(nn.Module):
    """Only the engine that loops over records differentiates it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def targets_of(plan: PrivacyPlan, quick: bool) -> dict[str, Target]:
    """The plan as it is, in all engines, layers of all kinds and micro-batches; on a GPU in captured steps too."""
    labels, numbers = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1)
    rows = torch.zeros(0, 6)

    def target(model: nn.Module, x: Tensor = rows, y: Tensor = labels, **how: Any) -> Target:
        likelihood = HomoscedasticGaussian() if y is numbers else Categorical()
        return Target(model, likelihood, x, y, plan, **how)

    targets = {
        "book-keeping, MLP": target(MLP(6, [16], 3)),
        "written out, bare parameters": target(_Bare()),
        "micro-batches, learned noise": target(MLP(6, [16], 1), y=numbers, execution=Execution(micro_batch_size=8)),
    }
    if torch.cuda.is_available():
        targets["captured steps on a GPU, MLP"] = target(MLP(6, [16], 3).cuda())
    if quick:
        return targets
    frozen = nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    return targets | {
        "several draws, joint BBP": target(MLP(6, [16], 3), method=BBP(1.0, form="joint", num_draws=2)),
        "book-keeping, CNN": target(CNN(), torch.zeros(0, 1, 28, 28)),
        "book-keeping, wide": target(MLP(700, [800], 3), torch.zeros(0, 700)),
        "one by one, GRU": target(_RecurrentNetwork(), torch.zeros(0, 4, 3)),
        "book-keeping, layer norm on a frozen layer": target(frozen),
    }


def counted(number: int, noun: str) -> str:
    """The number with the noun, which takes an s unless there is one."""
    return f"{number} {noun}{'s' * (number != 1)}"
