"""Many networks on the same records: all draws of a posterior, some at a time, within a memory bound.

Draws of the weights are stacked and run at once by vmap where that pays and where vmap can; where it can not (recurrent
layers, decisions that depend on values), one after another, with the same results. Where dropout stays on, the weights
are the same in all draws, and the records are repeated instead: every copy gets masks of its own.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from dpbnn.clipping.objective import Objective
from dpbnn.device.generators import Generators, ThreadMode, drawing_from, without_fast_path
from dpbnn.errors import DpbnnError
from dpbnn.models.dropout import dropout_layers, masks_on
from dpbnn.models.likelihoods import Moments, Probabilities
from dpbnn.models.modes import evaluating
from dpbnn.posterior import Posterior
from dpbnn.types import Weights

__all__ = ["Ensemble", "Inputs", "Known", "Layout", "PeakMemory", "Predicted", "layout"]

Predicted = Probabilities | Moments
"""Of one draw, or with a leading dimension of several."""

CPU_ROOM = 2**25
"""What a CPU works on at a time: beyond its caches larger blocks only get slower."""

FEWEST_TOGETHER = 8
"""Fewer draws than this are run one by one: putting them together would cost what it saves."""

BUSY = 2**29
"""Bytes that one draw works on which keep a GPU busy: stacks would only be slower."""

SEVERAL = 5
"""Draws in the trial that shows whether vmap can run several at once."""

HIDDEN_SCRATCH = 2
"""Kernels take memory of their own that is not seen: twice what is seen is set aside."""


class Inputs:
    """Records for several networks, each of which may write to what it is given: a copy, made anew after that.

    With `always` it is made anew for every network: some write in ways that torch does not notice.
    """

    def __init__(self, x: Tensor, always: bool = False) -> None:
        self._x, self._always = x, always
        self._copy: Tensor | None = None
        self._version = 0

    def given(self) -> Tensor:
        """What the next network gets."""
        if self._copy is None or self._always or self._copy.is_inference() or self._copy._version != self._version:
            self._copy = self._x.clone()
            self._version = 0 if self._copy.is_inference() else self._copy._version
        return self._copy


class Ensemble:
    """The networks that a posterior stands for; repeatable, as `seed` fixes the draws.

    `objective` is for nobody else meanwhile, as its model's mode is switched. `stacks` says whether several draws can
    run at once.
    """

    def __init__(self, objective: Objective, posterior: Posterior, num_draws: int, seed: int) -> None:
        if posterior.keeps_dropout and not dropout_layers(objective.model):
            raise DpbnnError(
                f"A {posterior.kind} needs a model with dropout layers, and {type(objective.model).__name__} has none; "
                "pass the network that was trained."
            )
        self.objective = objective
        self.posterior = posterior
        self.num_draws = num_draws
        self.seed = seed
        self.stacks = False

    def mode(self) -> AbstractContextManager[None]:
        """The mode in which the networks run; afterwards every module is in its own again."""
        return (masks_on if self.posterior.keeps_dropout else evaluating)(self.objective.model)

    @cached_property
    def device(self) -> torch.device:
        """Where the networks run."""
        return next(self.objective.model.parameters()).device

    def weights(self) -> Weights:
        """Those of the first network."""
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
            yield partial(self._weighted, group[0] if len(group) == 1 else _stacked(group), len(group))

    def one(self, weights: Weights, x: Tensor) -> Predicted:
        """What one network predicts; it may write to `x`."""
        outputs = self.objective.outputs(weights, x, copy=False)
        if outputs.dim() != 2 or len(outputs) != len(x):
            raise DpbnnError(
                f"X must have one row per record; for shape {list(x.shape)} the model returns {list(outputs.shape)}."
            )
        own = {name: weights[name] for name in self.objective.likelihood_names}
        return self.objective.likelihood.predictive(outputs, own)

    def _masked(self, weights: Weights, count: int, inputs: Inputs) -> Predicted:
        x = inputs.given()
        predicted = self.one(weights, x if count == 1 else _repeated(x, count))
        return type(predicted)(*(values.unflatten(0, (count, len(x))) for values in predicted))

    def _weighted(self, weights: Weights, count: int, inputs: Inputs) -> Predicted:
        if count == 1:
            predicted = self.one(weights, inputs.given())
            return type(predicted)(*(values.unsqueeze(0) for values in predicted))
        if self.stacks:
            try:
                return vmap(self.one, in_dims=(0, None))(weights, inputs.given())
            except Exception:  # whatever vmap cannot do, a plain run can; and if it cannot, its error is the clear one
                self.stacks = False
        single = ({name: values[index] for name, values in weights.items()} for index in range(count))
        each = [self.one(own, inputs.given()) for own in single]
        return type(each[0])(*(torch.stack(values) for values in zip(*each, strict=True)))

    def _cast(self, weights: Mapping[str, Tensor]) -> Weights:
        return {name: values.to(self.device) for name, values in self.objective.cast(weights).items()}


def _repeated(x: Tensor, count: int) -> Tensor:
    return x.repeat(count, *[1] * (x.dim() - 1))


def _stacked(group: list[Weights]) -> Weights:
    return {name: torch.stack([weights[name] for weights in group]) for name in group[0]}


@dataclass(frozen=True)
class Layout:
    """How much is done at a time: records and draws of the weights that run together, records that are read.

    `copies` says that every network needs a copy of the records, `is_random` that it draws random numbers.
    """

    rows: int
    draws: int
    part: int
    copies: bool = False
    is_random: bool = True


def layout(
    ensemble: Ensemble,
    record: Tensor,
    num_records: int,
    memory_limit: int,
    look: Callable[..., Any],
    known: "Known",
    keep_draws: bool = False,
) -> Layout:
    """As much as `memory_limit` bytes can hold, or for a run on a CPU what suits it; at least one of each.

    Half is for networks that run, a quarter for records that were read and their results, the rest is left. What they
    take is seen from one record that is run, alone and three times, with `look` called on what it predicts; `known` has
    what was seen before of the same network.
    """
    needs = _needs(ensemble, record, look, known)
    # Masks share their weights; a draw of weights is there itself, and in the stack.
    each_draw = 0 if ensemble.posterior.keeps_dropout else needs.alone + 2 * needs.weights
    room = min(memory_limit // 2, CPU_ROOM) if record.device.type == "cpu" else memory_limit // 2
    rows = max(1, min(room // needs.each_row, num_records))
    # Draws that are kept wait on their device for the end, and are joined there; on a CPU they are the result.
    keeps = record.device.type != "cpu" and (keep_draws or needs.keeps_draws)
    kept = 2 * ensemble.num_draws * needs.result if keeps else 0
    part = max(rows, memory_limit // 4 // (2 * record.nbytes + 5 * needs.result + kept))
    # Half of the room, as stacks are slow when they are large.
    draws = min(room // 2 // (each_draw + needs.each_row * rows), ensemble.num_draws)
    alone_is_enough = record.device.type != "cpu" and needs.each_row * rows > BUSY
    together = 1 if alone_is_enough or draws < FEWEST_TOGETHER else draws
    ensemble.stacks = together > 1 and not ensemble.posterior.keeps_dropout and _stacks(ensemble, record, known)
    return Layout(rows, together, part, needs.copies, needs.is_random)


@dataclass(frozen=True)
class Needs:
    """Bytes: of all that one record takes, of each further one, of one draw's weights, and of one record's result.

    And whether draws are kept, and every network needs a copy of its inputs, or draws random numbers.
    """

    alone: int
    each_row: int
    weights: int
    result: int
    keeps_draws: bool
    copies: bool
    is_random: bool


@dataclass(frozen=True)
class Known:
    """What was seen of a network, by the kind of record: looking takes longer than a small prediction.

    Of threads that look at the same time, all go by what one of them has entered first.
    """

    needs: dict[Any, Needs] = field(default_factory=dict)
    stacks: dict[Any, bool] = field(default_factory=dict)


def _kind(ensemble: Ensemble, record: Tensor) -> Any:
    computes_in = torch.is_autocast_enabled(record.device.type)
    of_network = ensemble.posterior.keeps_dropout, type(ensemble.objective.likelihood)
    return record.shape, record.dtype, record.device, computes_in, *of_network


def _needs(ensemble: Ensemble, record: Tensor, look: Callable[..., Any], known: Known) -> Needs:
    key = _kind(ensemble, record)
    if key not in known.needs:
        weights, spoiled = ensemble.weights(), []

        def run(copies: int) -> Predicted:
            x = _repeated(record, copies)
            predicted = ensemble.one(weights, x)
            spoiled.append(not torch.equal(x.nan_to_num(), _repeated(record, copies).nan_to_num()))
            look(type(predicted)(*(values.unsqueeze(0) for values in predicted)))
            return predicted

        with drawing_from(Generators.seeded(0)) as generators:
            (predicted, alone), (_, threefold) = (_peak(run, copies, (record, *weights.values())) for copies in (1, 3))
        seen = Needs(
            alone=alone,
            each_row=max(1, HIDDEN_SCRATCH * (threefold - alone) // 2),
            weights=sum(values.nbytes for values in weights.values()),
            result=sum(values.nbytes for values in predicted),
            keeps_draws=isinstance(predicted, Moments),
            copies=any(spoiled),
            is_random=generators.used,
        )
        known.needs.setdefault(key, seen)
    return known.needs[key]


def _stacks(ensemble: Ensemble, record: Tensor, known: Known) -> bool:
    key = _kind(ensemble, record)
    if key not in known.stacks:
        known.stacks.setdefault(key, _runs_at_once(ensemble, record))
    return known.stacks[key]


def _runs_at_once(ensemble: Ensemble, record: Tensor) -> bool:
    """Whether vmap runs several draws at once: not where it cannot, or does an operation for each draw by itself."""
    weights = ensemble.weights()
    several = _stacked([weights] * SEVERAL)
    try:
        with _Counting() as apart:
            ensemble.one(weights, record.clone())
        with _Counting() as together:
            vmap(ensemble.one, in_dims=(0, None))(several, record.clone())
    except Exception:  # whatever vmap cannot do, a plain run can; and if it cannot, its error is the clear one
        return False
    return not any(together.calls[func] >= SEVERAL * count for func, count in apart.calls.items())


class _Counting(ThreadMode):
    """Counts operations, but for views, which take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.calls[func] += 1
        return func(*args, **(kwargs or {}))


def _peak(run: Callable[[int], Predicted], copies: int, known: Iterable[Tensor]) -> tuple[Predicted, int]:
    """What `run` gives, and the most bytes that it held."""
    with without_fast_path(), PeakMemory(known) as memory:  # nobody sees what a fast path takes
        return run(copies), memory.peak


class PeakMemory(ThreadMode):
    """Watches the tensors that torch's operations make: the most bytes that were held by them at a time."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._held = {values.untyped_storage()._cdata for values in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for values in tree_leaves(result):
            if isinstance(values, Tensor) and values.layout == torch.strided:
                self._hold(values.untyped_storage())
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._held:
            self._held.add(storage._cdata)
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._let_go, storage._cdata, storage.nbytes())

    def _let_go(self, key: int, size: int) -> None:
        self._held.discard(key)
        self._now -= size
