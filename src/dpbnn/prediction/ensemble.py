"""Many networks on the same records: all draws of a posterior.

Draws of the weights run at once by vmap where that is faster. Where vmap fails (recurrent layers, decisions that depend
on values), they run one after another, with the same results. Where dropout stays on, all draws share the weights, and
the records are repeated instead: every copy gets other masks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from dpbnn._internals import ThreadMode, writes_to
from dpbnn.clipping.objective import Objective
from dpbnn.errors import DpbnnError
from dpbnn.models.dropout import dropout_layers, evaluating, masks_on
from dpbnn.models.likelihoods import Moments, Probabilities
from dpbnn.posterior import Posterior
from dpbnn.types import Weights

__all__ = ["Ensemble", "Inputs", "Predicted", "can_stack", "repeated"]

Predicted = Probabilities | Moments
"""The prediction of one draw, or of several in a leading dimension."""

TRIAL_DRAWS = 5
"""Draws in the trial that shows whether vmap can run several at once."""


class Inputs:
    """Records for several networks. After one that wrote to its inputs, the next one gets a new copy.

    With `always` every network gets a new copy: some write in ways that torch does not notice.
    """

    def __init__(self, x: Tensor, always: bool = False) -> None:
        self._x, self._always = x, always
        self._copy: Tensor | None = None
        self._version = 0

    def copy(self) -> Tensor:
        """The inputs of the next network."""
        if self._copy is None or self._always or self._copy.is_inference() or writes_to(self._copy) != self._version:
            self._copy = self._x.clone()
            self._version = 0 if self._copy.is_inference() else writes_to(self._copy)
        return self._copy


@dataclass(eq=False)
class Ensemble:
    """The networks that a posterior stands for; `seed` fixes the draws.

    Nobody else may use `objective` meanwhile: the mode of its model is switched. `stacks`: several draws run at once.
    """

    objective: Objective
    posterior: Posterior
    num_draws: int
    seed: int
    stacks: bool = False

    def __post_init__(self) -> None:
        model = self.objective.model
        if self.posterior.keeps_dropout and not dropout_layers(model):
            raise DpbnnError(
                f"A {self.posterior.kind} needs a model with dropout layers, and {type(model).__name__} has none; "
                "pass the network that was trained."
            )

    def mode(self) -> AbstractContextManager[None]:
        """Inside, the model is in the mode in which the networks run; then every module's mode is as before."""
        return (masks_on if self.posterior.keeps_dropout else evaluating)(self.objective.model)

    @cached_property
    def device(self) -> torch.device:
        """The device on which the networks run."""
        return next(self.objective.model.parameters()).device

    def weights(self) -> Weights:
        """The weights of the first draw."""
        return self._cast(next(iter(self.posterior.draw(self.num_draws, self.seed))))

    def groups(self, size: int) -> Iterator[Callable[[Inputs], Predicted]]:
        """All networks, `size` at a time: each group is a function of the records."""
        if self.posterior.keeps_dropout:
            weights = self.weights()
            for start in range(0, self.num_draws, size):
                yield partial(self._masked, weights, min(size, self.num_draws - start))
            return
        drawn = self.posterior.draw(self.num_draws, self.seed)
        while group := [self._cast(weights) for weights in islice(drawn, size if self.stacks else 1)]:
            yield partial(self._weighted, group, _stacked(group) if len(group) > 1 else {})

    def one(self, weights: Weights, x: Tensor) -> Predicted:
        """What one network predicts; it may write to `x`."""
        outputs = self.objective.outputs(weights, x, copy=False)
        if outputs.dim() != 2 or len(outputs) != len(x):
            raise DpbnnError(
                f"X must have one row per record; for shape {list(x.shape)} the model returns {list(outputs.shape)}."
            )
        of_likelihood = {name: weights[name] for name in self.objective.likelihood_names}
        return self.objective.likelihood.predictive(outputs, of_likelihood)

    def _masked(self, weights: Weights, count: int, inputs: Inputs) -> Predicted:
        x = inputs.copy()
        predicted = self.one(weights, x if count == 1 else repeated(x, count))
        return type(predicted)(*(values.unflatten(0, (count, len(x))) for values in predicted))

    def _weighted(self, group: list[Weights], stack: Weights, inputs: Inputs) -> Predicted:
        if stack and self.stacks:
            try:
                return vmap(self.one, in_dims=(0, None))(stack, inputs.copy())
            except Exception:  # a plain run can do what vmap cannot; where it fails too, its error is the clear one
                self.stacks = False
        each = [self.one(weights, inputs.copy()) for weights in group]
        return type(each[0])(*(torch.stack(values) for values in zip(*each, strict=True)))

    def _cast(self, weights: Mapping[str, Tensor]) -> Weights:
        return {name: values.to(self.device) for name, values in self.objective.cast(weights).items()}


def repeated(x: Tensor, count: int) -> Tensor:
    """`count` copies of the records, one after another."""
    return x.repeat(count, *[1] * (x.dim() - 1))


def _stacked(group: list[Weights]) -> Weights:
    return {name: torch.stack([weights[name] for weights in group]) for name in group[0]}


def can_stack(ensemble: Ensemble, record: Tensor) -> bool:
    """Whether vmap runs several draws at once: not where it fails, or does an operation for each draw by itself."""
    weights = ensemble.weights()
    try:
        with _CountedOperations() as apart:
            ensemble.one(weights, record.clone())
        with _CountedOperations() as together:
            vmap(ensemble.one, in_dims=(0, None))(_stacked([weights] * TRIAL_DRAWS), record.clone())
    except Exception:  # a plain run can do what vmap cannot; where it fails too, its error is the clear one
        return False
    return not any(together.calls[func] >= TRIAL_DRAWS * count for func, count in apart.calls.items())


class _CountedOperations(ThreadMode):
    """Counts operations, but for views, which take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.calls[func] += 1
        return func(*args, **(kwargs or {}))
