"""The steps that are compared: plain PyTorch, dpbnn, and Opacus in its two forms, on the paper's networks or any other.

A variant takes a model and an example batch and gives a function that takes one step on a batch.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dpbnn
from dpbnn.clipping import ClippingSettings, check_model, clip_and_sum
from dpbnn.methods import Method
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.source import StandardNoise
from dpbnn.training.loop import steps_of
from dpbnn.training.run import prepared
from measure import Step, device
from program import is_installed

__all__ = [
    "CLIP_NORM", "LEARNING_RATE", "NETWORKS", "NOISE", "OPACUS", "Network", "Phase", "Take", "Variant",
    "clipped_gradient", "opacus_ghost", "opacus_hooks", "opacus_is_there", "plain_gradient", "plain_step",
    "private_step", "step_of_fit",
]  # fmt: skip

CLIP_NORM, NOISE, LEARNING_RATE = 1.5, 1.3, 0.25
MANY_STEPS, RECORDS_PER_BATCH = 10**6, 4
Take = Callable[[Tensor, Tensor], object]
Variant = Callable[[nn.Module, Tensor, Tensor], Take]
Phase = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Network:
    """How to make a network and records for it."""

    make: Callable[..., nn.Module]
    shape: tuple[int, ...]
    classes: int = 10
    likelihood: Likelihood = field(default_factory=dpbnn.Categorical)

    def on_device(self, **settings: Any) -> nn.Module:
        """With the same weights every time."""
        torch.manual_seed(0)
        return self.make(**settings).to(device())

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Synthetic records; their content does not change how long a step takes."""
        generator = torch.Generator(device()).manual_seed(0)
        x = torch.randn(size, *self.shape, generator=generator, device=device())
        return x, torch.randint(self.classes, (size,), generator=generator, device=device())

    def step(self, variant: Variant, size: int, **settings: Any) -> Step:
        """A step of a variant on its own copy of the network and so many records."""
        x, y = self.batch(size)
        take = variant(self.on_device(**settings), x, y)
        return lambda: take(x, y)


def _mlp(dropout: float = 0.0) -> nn.Module:
    return dpbnn.networks.MLP(784, [1200, 1200], 10, dropout=dropout)


def _cnn(dropout: float = 0.0) -> nn.Module:
    return dpbnn.networks.CNN(dropout=dropout)


NETWORKS = {"MLP": Network(_mlp, (784,)), "CNN": Network(_cnn, (1, 28, 28))}


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Over the last dimension; the mean over records and, where there are any, tokens."""
    return F.cross_entropy(outputs.flatten(0, -2), y.flatten())


def plain_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Take:
    """The gradient of the mean loss."""
    parameters = list(model.parameters())
    return lambda x, y: torch.autograd.grad(cross_entropy(model(x), y), parameters)


def clipped_gradient(model: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Take:
    """The sum of clipped per-record gradients."""
    checked = check_model(model, likelihood or dpbnn.Categorical(), x[:0], y[:0])
    weights = checked.objective.model_weights()
    return lambda x, y: clip_and_sum(checked, weights, x, y, ClippingSettings(CLIP_NORM))


def no_phase(name: str) -> AbstractContextManager[object]:
    """Nobody watches the parts of a step."""
    return nullcontext()


def plain_step(model: nn.Module, x: Tensor, y: Tensor, phase: Phase = no_phase) -> Take:
    """The usual three lines of training. `phase` is told which part begins, here and below."""
    optimizer = _sgd(model)

    def take(x: Tensor, y: Tensor) -> None:
        with phase("gradient"):
            cross_entropy(model(x), y).backward()
        with phase("update"):
            optimizer.step()
            optimizer.zero_grad()

    return take


def private_step(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    method: Method[Any] | None = None,
    likelihood: Likelihood | None = None,
    phase: Phase = no_phase,
) -> Take:
    """Clip, add noise, update, keep, on the batch that is given."""
    method = dpbnn.SGD(learning_rate=LEARNING_RATE) if method is None else method
    checked = check_model(model, likelihood or dpbnn.Categorical(), x[:0], y[:0])
    plan = dpbnn.PrivacyPlan(60_000, len(x), MANY_STEPS, CLIP_NORM, NOISE, 1e-5)
    state = method.init(checked.objective.model_weights(), plan, seed=0)
    noise, step = StandardNoise(Randomness.from_operating_system()), 0

    def take(x: Tensor, y: Tensor) -> None:
        nonlocal state, step
        method.begin_step(state, step)
        with phase("gradient"):
            clipped = clip_and_sum(checked, method.weights(state, step), x, y, ClippingSettings(CLIP_NORM))
        with phase("noise"):
            noisy = add_noise(clipped, NOISE, noise, step)
        with phase("update"):
            state = method.update(state, noisy, step)
            method.end_step(state, step)
        step += 1

    return take


def step_of_fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    method: Method[Any] | None = None,
    likelihood: Likelihood | None = None,
) -> Take:
    """A turn of the loop in `dpbnn.fit` itself, which draws its own batches from records of its own.

    On a GPU it replays a CUDA graph where that is possible.
    """
    method = dpbnn.SGD(learning_rate=LEARNING_RATE) if method is None else method
    records, targets = torch.cat([x] * RECORDS_PER_BATCH), torch.cat([y] * RECORDS_PER_BATCH)
    plan = dpbnn.PrivacyPlan(len(records), len(x), MANY_STEPS, CLIP_NORM, NOISE, 1e-5)
    run = prepared(model, records, targets, method, plan, likelihood or dpbnn.Categorical())
    steps, numbers = steps_of([run.begin()]), count()
    return lambda x, y: steps.release_and_take(next(numbers))


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Take:
    """Opacus with per-sample gradients written out by hooks."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(_sgd(model), noise_multiplier=NOISE, max_grad_norm=CLIP_NORM, expected_batch_size=len(x))

    def take(x: Tensor, y: Tensor) -> None:
        cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return take


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Take:
    """Opacus with ghost clipping: two backward passes."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        _sgd(model), noise_multiplier=NOISE, max_grad_norm=CLIP_NORM, expected_batch_size=len(x)
    )
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def take(x: Tensor, y: Tensor) -> None:
        outputs = wrapped(x)
        loss(outputs.flatten(0, -2), y.flatten(), shape=y.shape if y.dim() > 1 else None).backward()
        optimizer.step()
        optimizer.zero_grad()

    return take


OPACUS: dict[str, Variant] = {"Opacus, ghost": opacus_ghost, "Opacus, hooks": opacus_hooks}


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def opacus_is_there() -> bool:
    """Whether Opacus is installed, which is optional."""
    return is_installed("opacus", "Opacus is not installed and left out: pip install -e '.[bench]' adds it.")
