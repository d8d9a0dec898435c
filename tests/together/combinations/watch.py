"""The only file here that knows how dpbnn works inside: what passes the privacy boundary, seen from outside.

    with watching() as seen:                        # or watching(replay=seen): the same releases again
        dpbnn.fit(...)
    seen.clips, seen.releases, seen.queries

What is wrapped, and nothing else:

* `add_noise`, in every module that imports it: what goes in, what comes out, with which noise
* `Randomness.add_normals`: the noise itself
* `clip_and_sum`, as the training loop calls it: at which weights, on which records
* the engines, for the masks that a network draws while they run (``F.dropout``)
* `opendp.core.measurement_invoke`: every mechanism of OpenDP's
* `PoissonSampler.batch`: the same records are drawn with and without one person
* `Randomness.from_operating_system`, `os.urandom`, `secrets`, unseeded generators of NumPy: the same chance again
* `least_noise`: noise for a budget is calibrated once
"""

import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpbnn.clipping import engines
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy import plan
from dpbnn.privacy.noise import mechanism
from dpbnn.privacy.noise.randomness import KEY_BYTES, Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler
from dpbnn.training.steps import eager
from dpbnn.types import Draws, NoisySum, Weights


class CrashError(BaseException):
    """An interruption; nothing in the library may catch it."""


@dataclass(frozen=True)
class Clip:
    """One clipped sum: everything that went into it, and the masks of each draw of the weights, record by record."""

    model: nn.Module
    likelihood: Likelihood
    likelihood_weights: tuple[str, ...]
    where: Weights | Draws
    x: Tensor
    y: Tensor
    clip_norm: float
    clipping: str
    precision: str | None
    masks: tuple[Tensor, ...]


@dataclass(frozen=True)
class Normals:
    """Standard normals times `scale` that were added to numbers, all in a row."""

    scale: float
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class Noise:
    """One call of `add_noise`, and the normals that were added in the course of it."""

    step: int
    before: Weights
    after: Weights
    noise_multiplier: float
    sensitivity: float
    normals: tuple[Normals, ...]


@dataclass(frozen=True)
class Query:
    """One call of a mechanism of OpenDP's; `epsilon` is for one row."""

    kind: str
    epsilon: float
    data: np.ndarray
    result: Any


@dataclass
class Seen:
    """All of one run, in its order; `drawn` has the rows of each batch."""

    drawn: list[np.ndarray] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    releases: list[Noise] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)


@dataclass(frozen=True)
class Sampling:
    """Batches as they are drawn from `length` records; those from `hers` on are in the first batch in any case."""

    length: int
    hers: int


@contextmanager
def watching(
    replay: Seen | None = None,
    answers: Sequence[Query] | None = None,
    sampling: Sampling | None = None,
    crash_at: tuple[int, bool] | None = None,
) -> Iterator[Seen]:
    """Look on, in one thread.

    `replay` gives out what an earlier run has released, whatever the records are; `answers` does so for queries alone,
    whose chance nobody can fix. `crash_at` interrupts at a step, before its noise is drawn or right after it.
    """
    answers = replay.queries if replay is not None else answers
    seen = Seen()
    with pytest.MonkeyPatch.context() as patch:
        _watch_noise(patch, seen, replay, crash_at)
        _watch_clips(patch, seen)
        _watch_queries(patch, seen, answers)
        if sampling is not None:
            _fix_sampling(patch, seen, sampling)
        yield seen


@contextmanager
def counting() -> Iterator[list[int]]:
    """The steps of all calls of `add_noise`, in all threads."""
    steps: list[int] = []
    with pytest.MonkeyPatch.context() as patch:

        def counted(original: Callable[..., NoisySum], *arguments: Any) -> NoisySum:
            steps.append(arguments[3])
            return original(*arguments)

        _wrap_add_noise(patch, counted)
        yield steps


@contextmanager
def same_chance(seed: int) -> Iterator[None]:
    """Whatever is taken from the operating system is a function of the seed, from here on."""
    chance, keys, unseeded = random.Random(seed), random.Random(seed + 1), np.random.default_rng
    with pytest.MonkeyPatch.context() as patch:
        # Apart from the rest: what others take, as they are imported for the first time, must not shift the keys.
        key = staticmethod(lambda: Randomness(keys.randbytes(KEY_BYTES)))
        patch.setattr(Randomness, "from_operating_system", key)
        patch.setattr(plan, "least_noise", _least_noise)
        patch.setattr(os, "urandom", chance.randbytes)
        patch.setattr(secrets, "randbits", chance.getrandbits)
        patch.setattr(
            np.random,
            "default_rng",
            lambda seed=None: unseeded(chance.getrandbits(128) if seed is None else seed),
        )
        yield


_least_noise = cache(plan.least_noise)
"""Of equal budgets it is the same: a matter of seconds."""


def _wrap_add_noise(patch: pytest.MonkeyPatch, wrapper: Callable[..., NoisySum]) -> None:
    """In every module that has imported it, whatever has been planted there since."""
    for name, module in list(sys.modules.items()):
        if name.startswith("dpbnn.") and name != mechanism.__name__ and "add_noise" in vars(module):
            patch.setattr(module, "add_noise", partial(wrapper, module.add_noise))


def _watch_noise(patch: pytest.MonkeyPatch, seen: Seen, replay: Seen | None, crash_at: tuple[int, bool] | None) -> None:
    normals: list[Normals] = []
    add_normals = Randomness.add_normals

    def added(self: Randomness, tensors: Sequence[Tensor], scale: float, step: int) -> None:
        before = _in_a_row(tensors)
        add_normals(self, tensors, scale, step)
        normals.append(Normals(scale, before, _in_a_row(tensors)))

    def watched(original: Callable[..., NoisySum], *arguments: Any) -> NoisySum:
        clipped, noise_multiplier, _, step = arguments
        before = _copied(clipped.gradients)
        normals.clear()
        if crash_at == (step, False):
            raise CrashError
        noisy = original(*arguments)
        if replay is not None:
            noisy = NoisySum(_copied(replay.releases[len(seen.releases)].after))
        claimed = noise_multiplier, clipped.sensitivity
        seen.releases.append(Noise(step, before, _copied(noisy.gradients), *claimed, normals=tuple(normals)))
        if crash_at == (step, True):
            raise CrashError
        return noisy

    patch.setattr(Randomness, "add_normals", added)
    _wrap_add_noise(patch, watched)


def _in_a_row(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([values.detach().double().ravel() for values in tensors])


def _watch_clips(patch: pytest.MonkeyPatch, seen: Seen) -> None:
    original = eager.clip_and_sum

    def watched(checked: Any, where: Weights | Draws, x: Tensor, y: Tensor, settings: Any, **how: Any) -> Any:
        objective = checked.objective
        draws = len(where.weights) if isinstance(where, Draws) else 1
        copied = _copied_draws(where) if isinstance(where, Draws) else _copied(where)
        with _masks(how["masks"], len(x), draws) if checked.draws else nullcontext([]) as masks:
            clipped = original(checked, where, x, y, settings, **how)
        own = objective.likelihood_names
        seen.clips.append(
            Clip(objective.model, objective.likelihood, own, copied, x.clone(), y.clone(), settings.clip_norm,
                 settings.style, settings.precision, masks=tuple(masks))
        )  # fmt: skip
        return clipped

    patch.setattr(eager, "clip_and_sum", watched)


@contextmanager
def _masks(source: Generators, records: int, draws: int) -> Iterator[list[Tensor]]:
    """The masks of each draw, one row for each record.

    An engine is called for some records at a time, and for these once for each draw. Rows behind the records are
    padding. Each call draws afresh, from a seed that the run's own source gives: then its masks do not depend on how
    many records there were before, and are the same with and without a record at the end.
    """
    seed = int(torch.randint(2**62, (), generator=source.on(torch.device("cpu"))))
    calls: list[list[Tensor]] = []
    found: list[Tensor] = []
    plain, is_inside = nn.functional.dropout, False

    def dropout(values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        nonlocal is_inside
        if is_inside or not (training and calls):  # a torch function mode calls what it sees a second time
            return plain(values, p, training, inplace)
        is_inside = True
        try:
            mask = plain(torch.ones_like(values), p, training)
        finally:
            is_inside = False
        calls[-1].append(_unwrapped(mask).detach().float())
        return values * mask

    def watched(engine: engines.Engine) -> engines.Engine:
        def run(*arguments: Any) -> Any:
            calls.append([])
            try:
                with drawing_from(Generators.seeded(seed + len(calls))):
                    return engine(*arguments)
            except BaseException:
                calls.pop()
                raise

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "dropout", dropout)
        for name, engine in list(engines.ENGINES.items()):
            patch.setitem(engines.ENGINES, name, watched(engine))
        yield found
    parts = [torch.cat([mask.reshape(-1, mask.shape[-1]) for mask in call]) for call in calls if call]
    if parts:
        found += [torch.cat(parts[draw::draws])[:records] for draw in range(draws)]


@contextmanager
def with_mask(mask: Tensor | None) -> Iterator[None]:
    """A network that is run on one record draws this mask; None: there is nothing to draw."""
    with pytest.MonkeyPatch.context() as patch:
        if mask is not None:
            patch.setattr(nn.functional, "dropout", lambda values, *_: values * mask.to(values).view_as(values))
        yield


def _unwrapped(values: Tensor) -> Tensor:
    """What vmap and grad have wrapped, records first."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(values):
        values = functorch.get_unwrapped(values)
    return values


def _watch_queries(patch: pytest.MonkeyPatch, seen: Seen, answers: Sequence[Query] | None) -> None:
    core = pytest.importorskip("opendp.core")
    original = core.measurement_invoke

    def watched(measurement: Any, data: Any) -> Any:
        result = original(measurement, data)
        if answers is not None:
            result = answers[len(seen.queries)].result
        kind = str(measurement.input_metric)
        epsilon = measurement.map(1.0 if "LInf" in kind else 1)
        seen.queries.append(Query(kind, epsilon, np.array(data, dtype=np.float64), result))
        return result

    patch.setattr(core, "measurement_invoke", watched)


def _fix_sampling(patch: pytest.MonkeyPatch, seen: Seen, sampling: Sampling) -> None:
    original = PoissonSampler.batch

    def batch(self: PoissonSampler, step: int) -> np.ndarray:
        drawn = original(replace(self, num_records=sampling.length), step)
        drawn = drawn[drawn < self.num_records]
        if step == 0:
            drawn = np.union1d(drawn, np.arange(min(sampling.hers, self.num_records), self.num_records))
        seen.drawn.append(drawn)
        return drawn

    patch.setattr(PoissonSampler, "batch", batch)


def _copied(weights: Weights) -> Weights:
    return {name: values.detach().clone() for name, values in weights.items()}


def _copied_draws(draws: Draws) -> Draws:
    return Draws(tuple(map(_copied, draws.weights)), tuple(map(_copied, draws.multipliers)))
