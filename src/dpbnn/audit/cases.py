"""What is sent through single steps: the plan as it is in networks of all kinds, and the same code with other settings.

Of the settings in `COVERING` any two values meet in at least one case.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.audit.claim import levels_of
from dpbnn.device.execution import Execution
from dpbnn.methods import BBP
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian, Likelihood
from dpbnn.models.networks import CNN, MLP
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["COVERING", "FOR_QUICK", "Case", "Variation", "cases_of", "counted", "variations_of"]

LARGE_BATCH = 4096
"""Records beside the person's, whose rows take the batch beyond what is summed in float32."""
MORE_NOISE, LARGER_NORM = 1.25, 2.0
"""The second level of noise and clipping, in units of the first."""


@dataclass(frozen=True)
class Case:
    """One attack on single steps; `how` has further arguments of `audit_mechanism`."""

    name: str
    model: nn.Module
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    plan: PrivacyPlan
    how: dict[str, Any]


@dataclass(frozen=True)
class Variation:
    """Settings other than the plan's: a plan with them makes a claim of its own."""

    clipping: str
    levels: int
    rows_per_person: int
    is_joint: bool
    is_large_batch: bool
    is_wide: bool

    @property
    def name(self) -> str:
        """In words."""
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

    def case(self, plan: PrivacyPlan) -> Case:
        """The attack on it."""
        columns, hidden = (800, 660) if self.is_wide else (6, 16)
        how: dict[str, Any] = {"others": LARGE_BATCH} if self.is_large_batch else {}
        if self.is_joint:
            how["method"] = BBP(1.0, form="joint", num_draws=2)
        x, y = torch.zeros(0, columns), torch.zeros(0, dtype=torch.long)
        return Case(self.name, MLP(columns, [hidden], 3), Categorical(), x, y, self.plan(plan), how)


COVERING = (
    Variation("flat", 1, 1, is_joint=False, is_large_batch=False, is_wide=False),
    Variation("automatic", 1, 3, is_joint=True, is_large_batch=False, is_wide=True),
    Variation("flat", 2, 1, is_joint=True, is_large_batch=False, is_wide=True),
    Variation("automatic", 2, 1, is_joint=False, is_large_batch=True, is_wide=True),
    Variation("flat", 2, 3, is_joint=True, is_large_batch=True, is_wide=False),
    Variation("automatic", 1, 3, is_joint=False, is_large_batch=True, is_wide=False),
)
FOR_QUICK = (COVERING[0], COVERING[1], COVERING[4])
"""Has each value at least once."""


def variations_of(plan: PrivacyPlan, quick: bool) -> Iterator[Case]:
    """The same code with settings other than the plan's."""
    for variation in FOR_QUICK if quick else COVERING:
        yield variation.case(plan)


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


def cases_of(plan: PrivacyPlan, quick: bool) -> Iterator[Case]:
    """The plan as it is, in all engines, layers of all kinds and micro-batches; on a GPU in captured steps too."""
    labels, numbers = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1)
    rows = torch.zeros(0, 6)

    def case(name: str, model: nn.Module, x: Tensor = rows, y: Tensor = labels, **how: Any) -> Case:
        likelihood = HomoscedasticGaussian() if y is numbers else Categorical()
        return Case(name, model, likelihood, x, y, plan, how)

    yield case("book-keeping, MLP", MLP(6, [16], 3))
    yield case("written out, bare parameters", _Bare())
    small = Execution(micro_batch_size=8)
    yield case("micro-batches, learned noise", MLP(6, [16], 1), y=numbers, execution=small)
    if torch.cuda.is_available():
        yield case("captured steps on a GPU, MLP", MLP(6, [16], 3).cuda())
    if quick:
        return
    yield case("several draws, joint BBP", MLP(6, [16], 3), method=BBP(1.0, form="joint", num_draws=2))
    yield case("book-keeping, CNN", CNN(), torch.zeros(0, 1, 28, 28))
    yield case("book-keeping, wide", MLP(700, [800], 3), torch.zeros(0, 700))
    yield case("one by one, GRU", _RecurrentNetwork(), torch.zeros(0, 4, 3))
    frozen = nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    yield case("book-keeping, layer norm on a frozen layer", frozen)


def counted(number: int, noun: str) -> str:
    """The number with the noun, which takes an s unless there is one."""
    return f"{number} {noun}{'s' * (number != 1)}"
