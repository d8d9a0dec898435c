"""One trial of a model: one set of weights and synthetic records, and all that the model must not do with them.

A record's loss and gradient must be the same alone, in batches of other sizes, and whatever the other records hold. The
same input and the same random numbers must give the same result again, each record must have random numbers of its own,
and nothing of a record may stay behind in the model.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.clipping.check.coverage import agrees_with_loop
from dpbnn.clipping.check.probes import NUM_RECORDS, first_noticed
from dpbnn.clipping.check.synthetic import FAR_OUT, synthetic_records, with_changed_record, without_padding
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.engines.layout import ModelLayout
from dpbnn.clipping.forms.joint import is_one_product
from dpbnn.clipping.objective import Objective
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.models.dropout import dropout_layers, evaluating
from dpbnn.types import Weights

__all__ = ["Trial", "refuse_kept_records"]

SIZES = (1, 3, 64)
SEEDS = (1, 2, 3)
MIXES = "The model mixes records: the {} of one depends on {}. {}"
KEEP_APART = "Every operation must keep the first dimension, the records, apart."
KEEPS = (
    "The model keeps '{}' from its forward pass: what records leave behind has no noise on it; use a local variable "
    "instead."
)
PARTS_OF_A_MODULE = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Trial:
    """One set of weights and synthetic records; `draws` says whether the model draws random numbers."""

    objective: Objective
    weights: Weights
    x: Tensor
    y: Tensor
    draws: bool
    known: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @staticmethod
    def of(objective: Objective, weights: Weights, x: Tensor, y: Tensor, num_outputs: int) -> "Trial":
        """On records that look like (x, y)."""
        x, y = synthetic_records(objective, x, y, max(SIZES), num_outputs)
        copies = {name: values.clone() for name, values in weights.items()}  # which a model may write to
        with torch.no_grad(), drawing_from(Generators.seeded(0)) as generators:
            objective.losses(objective.outputs(copies, x), y, copies)
        has_dropout = any(layer.training for _, layer in dropout_layers(objective.model))
        return Trial(objective, weights, x, y, has_dropout or generators.used)

    def losses(self, x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
        """Each record's loss; the model's draws start from a seed."""
        with torch.no_grad(), drawing_from(Generators.seeded(seed)) if self.draws else nullcontext():
            return self.objective.losses(self.objective.outputs(self.weights, x), y, self.weights)

    def base(self, size: int, seed: int = 0) -> Tensor:
        """The losses of the first records, in the mode that the model came in; computed once."""
        if (size, seed) not in self.known:
            self.known[size, seed] = self.losses(self.x[:size], self.y[:size], seed)
        return self.known[size, seed]

    def refuse_uninformative_losses(self) -> None:
        """Losses that are NaN, or do not depend on the model's output, would not show what the model does."""
        seen = torch.cat([self._is_seen(*part) for part in zip(self.x.split(8), self.y.split(8), strict=True)])
        if seen.sum() < len(seen) / 4:  # a network that is sure of everything is right once in a while
            raise DpbnnError(
                f"The model cannot be tried out: of {len(seen)} synthetic records {int(len(seen) - seen.sum())} have a "
                f"loss that is not finite or not of its output; let {type(self.objective.likelihood).__name__}."
                "synthetic_targets draw targets that the likelihood accepts, and scale the model to inputs of size 1."
            )

    def _is_seen(self, x: Tensor, y: Tensor) -> Tensor:
        """Which records have a finite loss that depends on the outputs."""
        with torch.no_grad():
            outputs = self.objective.outputs(self.weights, x)
        leaf = outputs.detach().requires_grad_()
        losses = self.objective.losses(leaf, y, self.weights)
        (gradients,) = torch.autograd.grad(losses.sum(), leaf, materialize_grads=True, allow_unused=True)
        return losses.isfinite() & gradients.isfinite().flatten(1).all(dim=1) & gradients.flatten(1).any(dim=1)

    def refuse_state(self) -> None:
        """A second run must give the same losses, and leave nothing behind."""
        before = {name: values.clone() for name, values in self.weights.items()}
        first = self.base(len(self.x))
        kept = _kept_values(self.objective.model)
        if not _alike(self.losses(self.x, self.y), first):
            raise DpbnnError(
                "The model gives different losses for the same records and the same random numbers: it keeps state "
                "between calls, which has no noise on it, or draws random numbers outside of torch's generator. "
                "Remove that."
            )
        for name, value in _kept_values(self.objective.model).items():
            if name in kept and kept[name] != value:
                raise DpbnnError(KEEPS.format(name))
        for name, values in self.weights.items():
            if not torch.equal(values, before[name]):
                raise DpbnnError(
                    f"Weight '{name}' is rewritten while the model runs, without noise; only training may change it."
                )

    def refuse_mixing(self) -> None:
        """One record is changed, also beyond all measure: the others' losses must stay as they were."""
        is_random = self.is_random_as_it_is()
        for size in SIZES[1:]:
            x, y = self.x[:size], self.y[:size]
            for seed, far in enumerate(FAR_OUT):
                changed, others = with_changed_record(x, y, far)
                if not _alike(self.losses(*changed, seed)[others], self.base(size, seed * is_random)[others]):
                    raise DpbnnError(MIXES.format("loss", "another's values", KEEP_APART))

    def refuse_dependence_on_kinds(self) -> None:
        """The kind of one record (padded, empty, coded, of another range) must not show in the others' losses.

        A model that is random in all modes is run with the same draws.
        """
        if self._in_a_calm_mode(self._refuse_noticed) is None:
            self._refuse_noticed()

    def _refuse_noticed(self) -> bool:
        with drawing_from(Generators.seeded(0)):
            x = without_padding(self.objective.model, self.x[:NUM_RECORDS])
        alike = partial(_alike, dtype=self._dtype())
        probe = first_noticed(self.losses, alike, x, self.y[:NUM_RECORDS], self.x.dtype)
        if probe is not None:
            raise DpbnnError(MIXES.format("loss", probe.reveals, probe.cure))
        return True

    def refuse_shared_draws(self) -> None:
        """Equal records must draw apart, from torch's generator alone."""
        same_x, same_y = self.x[:1].expand_as(self.x[:8]).clone(), self.y[:1].expand_as(self.y[:8]).clone()
        by_seed = [self.losses(same_x, same_y, seed) for seed in SEEDS]
        differ_within = any(not _alike(losses, losses[:1].expand_as(losses)) for losses in by_seed)
        differ_between = any(not _alike(losses, by_seed[0]) for losses in by_seed[1:])
        if differ_between and not differ_within:
            raise DpbnnError("The model draws random numbers that all records share; let each record have its own.")
        if differ_within and not differ_between:
            raise DpbnnError(
                "The model treats equal records differently without drawing from torch's generator: by their place in "
                "the batch, or with a generator of its own. Remove that."
            )

    def refuse_draws_in_the_backward_pass(self) -> None:
        """A layer that runs again to be differentiated would draw again, and its gradient be that of another loss."""
        leaves = {name: values.clone().requires_grad_() for name, values in self.weights.items()}
        with torch.enable_grad(), drawing_from(Generators.seeded(0)) as generators:
            losses = self.objective.losses(self.objective.outputs(leaves, self.x[:2]), self.y[:2], leaves)
            before = generators.num_draws
            torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        if generators.num_draws > before:
            raise DpbnnError(
                "The model draws random numbers in its backward pass, as activation checkpointing with dropout does: "
                "its gradients would not be those of its losses. Leave checkpointing out of layers that draw."
            )

    def refuse_dependence_on_size(self, engine: str) -> None:
        """Loss and gradient of a record must be those that it has alone; half precision rounds too coarsely to tell."""
        if self._dtype().itemsize >= 4:
            self._in_a_calm_mode(partial(self._refuse_difference_to_alone, engine))

    def _in_a_calm_mode(
        self, test: Callable[[], bool], failures: tuple[type[Exception], ...] = (RuntimeError,)
    ) -> bool | None:
        """The result of a test in the first mode in which the model is not random and does not fail.

        None if there is no such mode. A random model is tried with its dropout layers off, then in evaluation mode.
        """
        for calmer, is_random in CALMER:
            with calmer(self.objective.model), suppress(*failures):
                if not is_random(self):
                    return test()
        return None

    def _dtype(self) -> torch.dtype:
        return next(iter(self.weights.values())).dtype

    def is_random_as_it_is(self) -> bool:
        """Whether the losses depend on the seed, or would if the last layer were not zero."""
        draws = any(layer.training for _, layer in dropout_layers(self.objective.model))
        return draws or any(not _alike(self.base(len(self.x), seed), self.base(len(self.x))) for seed in SEEDS)

    def is_random_now(self) -> bool:
        """Whether the losses depend on the seed in the mode that the model is in now."""
        first = self.losses(self.x, self.y)
        return any(not _alike(self.losses(self.x, self.y, seed), first) for seed in SEEDS)

    def _refuse_difference_to_alone(self, engine: str) -> bool:
        together = self._gradient_norms(engine, slice(0, 3))
        for index in range(3):
            alone = self._gradient_norms(engine, slice(index, index + 1))[:, 0]
            if not torch.allclose(together[:, index], alone, rtol=0.0, atol=1e-2 * float(alone.norm()), equal_nan=True):
                raise DpbnnError(MIXES.format("gradient", "the others, or on how many there are", KEEP_APART))
        losses = self.losses(self.x, self.y)
        for size in SIZES[:-1]:
            if not _alike(self.losses(self.x[:size], self.y[:size]), losses[:size]):
                raise DpbnnError(MIXES.format("loss", "how many others there are", KEEP_APART))
        return True

    def _gradient_norms(self, engine: str, pick: slice) -> Tensor:
        """One row for each weight, one column for each record."""
        gradients = ENGINES[engine](self.objective, self.weights, self.x[pick], self.y[pick])
        return torch.stack([gradients[name].squared_norms().sqrt() for name in sorted(gradients)])

    def numbers_written_out(self, engine: str) -> int:
        """The size of the weights whose gradients are more than one product for each record."""
        gradients = ENGINES[engine](self.objective, self.weights, self.x[:2], self.y[:2])
        return sum(self.weights[name].numel() for name, values in gradients.items() if not is_one_product(values))

    def agrees(self, layout: ModelLayout) -> bool:
        """Whether book-keeping gives what a loop gives; a model that is random in all modes shows nothing."""
        test = partial(agrees_with_loop, self.objective.with_layout(layout), self.weights, self.x[:5], self.y[:5])
        agrees = self._in_a_calm_mode(test, (RuntimeError, ValueError))
        return layout == ModelLayout() if agrees is None else agrees


def _alike(first: Tensor, second: Tensor, dtype: torch.dtype = torch.float64) -> bool:
    """Equal but for the rounding of this type, or of the losses' own if that is coarser."""
    tolerance = max(1e-3, *(torch.finfo(each).eps ** 0.5 for each in (first.dtype, dtype)))
    return torch.allclose(first, second, rtol=tolerance, atol=1e-6, equal_nan=True)


@contextmanager
def _without_masks(model: nn.Module) -> Iterator[None]:
    """Dropout layers off, everything else as it is trained."""
    layers = [layer for _, layer in dropout_layers(model) if layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


CALMER: tuple[tuple[Callable[[nn.Module], AbstractContextManager[Any]], Callable[[Trial], bool]], ...] = (
    (nullcontext, Trial.is_random_as_it_is),
    (_without_masks, Trial.is_random_now),
    (evaluating, Trial.is_random_now),
)
"""Modes in which a model may not be random, and how to tell, in the order in which they are tried."""


def _kept_values(model: nn.Module) -> dict[str, object]:
    """Tensors, by identity, and numbers that modules hold as plain attributes."""
    return {
        name: id(value) if isinstance(value, Tensor) else value
        for name, value in _attributes(model)
        if isinstance(value, (Tensor, float))
    }


def refuse_kept_records(objective: Objective, weights: Weights, x: Tensor) -> None:
    """A fresh model must not keep anything of the records that it sees first: two copies see different ones.

    A model that cannot be copied, or cannot run, is left to the other checks.
    """
    kept = []
    for part in x.chunk(2):
        try:
            model = copy.deepcopy(objective.model)
            with torch.no_grad(), drawing_from(Generators.seeded(0)):
                Objective(model, objective.likelihood).outputs(weights, part)
        except Exception:  # whatever a model's own parts raise
            return
        kept.append(dict(_attributes(model)))
    for name, value in kept[0].items():
        if not _is_same(value, kept[1].get(name, value)):
            raise DpbnnError(KEEPS.format(name))


def _attributes(model: nn.Module) -> Iterator[tuple[str, object]]:
    """What modules hold beside parameters, buffers and other modules."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute not in PARTS_OF_A_MODULE:
                yield f"{name}.{attribute}".lstrip("."), value


def _is_same(first: object, second: object) -> bool:
    """Compares tensors, numbers and collections of them by value; anything else counts as the same."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.is_floating_point() and first.shape == second.shape and first.dtype == second.dtype:
            return torch.allclose(first, second, equal_nan=True)
        return torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_is_same(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple, deque)) and isinstance(second, (list, tuple, deque)):
        return len(first) == len(second) and all(map(_is_same, first, second))
    numbers = (bool, int, float, str, set, frozenset, Tensor)
    return first == second if isinstance(first, numbers) and isinstance(second, numbers) else True
