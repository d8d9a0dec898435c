"""Bugs that have happened, or could: small patches to the real code, each with what must notice it.

A detector says whether it finds anything wrong. On the real code none does; with a bug planted, its own does.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

import dpbnn
from dpbnn import training
from dpbnn.audit.mechanism import audit_mechanism
from dpbnn.audit.sampling import audit_sampling
from dpbnn.checkpoint import Checkpoint
from dpbnn.clipping import compatibility, engines, gradient, trial
from dpbnn.clipping.per_record import Dense
from dpbnn.privacy.purchases import LedgerError
from dpbnn.privacy.randomness import Randomness
from dpbnn.privacy.sampling import PoissonSampler
from dpbnn.records import InMemoryRecords
from dpbnn.stepping import eager, work
from dpbnn.types import ClippedSum, NoisySum

PLAN = dpbnn.PrivacyPlan(dataset_size=50, batch_size=50, steps=1, clip_norm=0.7, noise_multiplier=1.0, delta=1e-5)
X, Y = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


class Centred(nn.Module):
    """Records that see the mean of their batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x - x.mean(dim=0) if len(x) > 1 else x)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


# Detectors


def mechanism(model=None):
    """`dpbnn audit`, the mechanism."""
    empty = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    found = audit_mechanism(model or network(), dpbnn.Categorical(), *empty, PLAN, observations=60_000)
    return not found.holds


def mechanism_of_a_mixing_model():
    """`check_model` refuses it; if that fails, `dpbnn audit`."""
    try:
        return mechanism(Centred())
    except dpbnn.DpbnnError:
        return False


def sampling():
    """`dpbnn audit`, sampling."""
    return not audit_sampling(0.1).holds


def own_gradients():
    """Contract: a record's part is its own gradient by plain autograd, clipped over all weights together."""
    model = network()
    for x, y in zip(X[:8] * 3, Y[:8], strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        own = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, model.parameters()), strict=True))
        norm = float(torch.cat([values.ravel() for values in own.values()]).norm())
        factor = min(1.0, PLAN.clip_norm / (1 + gradient.ROUNDING_ROOM) / norm)
        found = work.clip_and_sum(
            compatibility.check_model(model, dpbnn.Categorical(), x[None], y[None]),
            {name: values.detach() for name, values in model.named_parameters()},
            x[None],
            y[None],
            PLAN.clip_norm,
        )
        if not all(torch.allclose(found.gradients[name], factor * own[name], atol=1e-5) for name in own):
            return True
    return False


def fitted(x=X, y=Y, **options):
    plan = replace(PLAN, batch_size=10, steps=20)
    return dpbnn.fit(
        network(), x, y, method=dpbnn.SGD(0.1), plan=plan, likelihood=dpbnn.Categorical(), progress=False, **options
    )


def resuming(tmp_path_factory):
    """Contract: a resumed run has charged every step of the plan, once."""
    folder = tmp_path_factory.mktemp("run") / "state"
    original, calls = eager.EagerSteps.take, []

    def interrupted(self, state, noisy, step):
        calls.append(step)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return original(self, state, noisy, step)

    options = {"checkpoint": folder, "execution": dpbnn.Execution(checkpoint_seconds=0.0)}
    eager.EagerSteps.take = interrupted
    try:
        with contextlib.suppress(KeyboardInterrupt):
            fitted(**options)
        return fitted(**options).settings["releases_charged"] != 20
    except LedgerError:  # the ledger refuses to make the release
        return True
    finally:
        eager.EagerSteps.take = original


def visible():
    """Contract: with constants for releases, two data sets look the same from outside."""
    original = eager.add_noise

    def constant(clipped, noise_multiplier, randomness, step):
        shapes = {name: torch.zeros_like(values) for name, values in clipped.gradients.items()}
        original(clipped, noise_multiplier, randomness, step)
        return NoisySum(shapes)

    eager.add_noise = constant
    try:
        releases = [fitted(x, Y, unsafe_seed=0) for x in (X, 3 * X + 1)]
    finally:
        eager.add_noise = original
    shown = [(json.dumps(own.settings, sort_keys=True, default=str), own.history) for own in releases]
    weights = [own.posterior.weights for own in releases]
    same = all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    return shown[0] != shown[1] or not same


# Bugs


def before_noise(change):
    """A patch of what goes into `add_noise`; `change` gives its sum and multiplier."""

    def plant(patch):
        original = eager.add_noise

        def planted(clipped, noise_multiplier, randomness, step):
            return original(*change(clipped, noise_multiplier), randomness, step)

        patch.setattr(eager, "add_noise", planted)

    return plant


def after_clipping(change):
    """A patch of the clipped sum; `change` gets it and how to have it with other arguments."""

    def plant(patch):
        original = work.clip_and_sum

        def planted(checked, where, x, y, clip_norm, **how):
            again = lambda **other: original(checked, where, x, y, **{"clip_norm": clip_norm} | how | other)  # noqa: E731
            return change(again(), again, x)

        patch.setattr(work, "clip_and_sum", planted)

    return plant


def of_batches(change):
    """A patch of the batches as training reads them."""

    def plant(patch):
        original = InMemoryRecords.batches

        def planted(self, *arguments):
            yield from change(original(self, *arguments))

        patch.setattr(InMemoryRecords, "batches", planted)

    return plant


def of_the_batch_that_came(change):
    """A patch of `add_noise` that knows how many records there were."""

    def plant(patch):
        original_clip, original_noise, sizes = work.clip_and_sum, eager.add_noise, []

        def clip(checked, where, x, *arguments, **how):
            sizes.append(max(1, len(x)))
            return original_clip(checked, where, x, *arguments, **how)

        patch.setattr(work, "clip_and_sum", clip)
        patch.setattr(eager, "add_noise", lambda sums, *how: change(original_noise, sums, sizes[-1], *how))

    return plant


def mean_before_noise(add_noise, sums, size, *how):
    return add_noise(scaled(sums, 1 / size), *how)


def divided_by_the_batch_that_came(add_noise, sums, size, *how):
    return scaled(add_noise(sums, *how), 4 / size)


def scaled(sums, factor):
    return replace(sums, gradients={name: values * factor for name, values in sums.gradients.items()})


def unclipped(part):
    def change(clipped, again, _):
        raw = again(clip_norm=1e6)
        own = {name: raw.gradients[name] if part in name else clipped.gradients[name] for name in raw.gradients}
        return ClippedSum(own, clipped.sensitivity, clipped.types)

    return after_clipping(change)


def noise_on_weights_alone(patch):
    original = Randomness.add_normals
    patch.setattr(
        Randomness,
        "add_normals",
        lambda self, tensors, scale, step: original(self, [own for own in tensors if own.dim() > 1], scale, step),
    )


def same_noise_in_every_step(patch):
    original = Randomness.add_normals
    patch.setattr(Randomness, "add_normals", lambda self, tensors, scale, step: original(self, tensors, scale, 0))


def uniform_noise(patch):
    def planted(self, tensors, scale, step):
        generator = torch.Generator().manual_seed(self.torch_seed("noise", step))
        for own in tensors:
            own += scale * 12**0.5 * (torch.rand(own.shape, generator=generator) - 0.5)

    patch.setattr(Randomness, "add_normals", planted)


def same_noise_in_every_tensor(patch):
    original = Randomness.add_normals

    def planted(self, tensors, scale, step):
        for own in tensors:
            original(self, [own], scale, step)

    patch.setattr(Randomness, "add_normals", planted)


def noise_that_repeats(patch):
    original = Randomness.add_normals
    patch.setattr(
        Randomness, "add_normals", lambda self, tensors, scale, step: original(self, tensors, scale, step % 200)
    )


def noise_cut_off(patch):
    original = Randomness.add_normals

    def planted(self, tensors, scale, step):
        alone = [torch.zeros_like(own) for own in tensors]
        original(self, alone, scale, step)
        for own, noise in zip(tensors, alone, strict=True):
            own += noise.clamp(-3.4 * scale, 3.4 * scale)

    patch.setattr(Randomness, "add_normals", planted)


def last_step_without_noise(patch):
    original = eager.add_noise
    patch.setattr(
        eager,
        "add_noise",
        lambda sums, noise, randomness, step: original(sums, noise if step else 1e-9 * noise, randomness, step),
    )


def empty_batches_without_noise(patch):
    original = eager.add_noise

    def planted(sums, noise, randomness, step):
        is_empty = not any(values.any() for values in sums.gradients.values())
        return original(sums, 1e-9 * noise if is_empty else noise, randomness, step)

    patch.setattr(eager, "add_noise", planted)


def noise_for_the_journal_alone(patch):
    """What is released with a checkpoint has noise; the path without one has none."""
    original = eager.EagerSteps.release

    def planted(self, state, step):
        with_noise = eager.add_noise
        eager.add_noise = lambda sums, noise, *how: with_noise(sums, 1e-9 * noise, *how)
        try:
            return self.take(state, original(self, state, step), step)
        finally:
            eager.add_noise = with_noise

    patch.setattr(eager.EagerSteps, "release_and_take", planted)


def sums_without_noise_in_the_update(patch):
    original_noise, original_take, raw = eager.add_noise, eager.EagerSteps.take, {}

    def noisy(sums, *how):
        raw.update({name: values.clone() for name, values in sums.gradients.items()})
        return original_noise(sums, *how)

    def take(self, state, noisy_sum, step):
        both = {name: values + 5 * raw[name] for name, values in noisy_sum.gradients.items()}
        return original_take(self, state, NoisySum(both), step)

    patch.setattr(eager, "add_noise", noisy)
    patch.setattr(eager.EagerSteps, "take", take)


def half_of_epsilon(patch):
    original = dpbnn.PrivacyPlan.account

    def planted(self, *arguments, **how):
        found = original(self, *arguments, **how)
        return replace(found, epsilon=found.epsilon / 2)

    patch.setattr(dpbnn.PrivacyPlan, "account", planted)


def no_clipping(patch):
    after_clipping(lambda clipped, again, _: replace(again(clip_norm=1e9), sensitivity=clipped.sensitivity))(patch)


def first_record_unclipped(patch):
    original = gradient._factors

    def planted(*arguments):
        factors = original(*arguments).clone()
        factors[:1] = 1.0
        return factors

    patch.setattr(gradient, "_factors", planted)


def batches_cut_at_the_expected_size(patch):
    original = eager.EagerSteps._read

    def planted(self, first_step):
        size = self._work.plan.batch_size
        return ((x[:size], y[:size]) for x, y in original(self, first_step))

    patch.setattr(eager.EagerSteps, "_read", planted)


def constant_seed(patch):
    patch.setattr(Randomness, "from_operating_system", staticmethod(lambda: Randomness(bytes(32))))


def clip_for_each_layer(patch):
    original = gradient._clip_and_sum_one_part

    def planted(gradients, *arguments):
        parts = [original({name: own}, *arguments) for name, own in dict(gradients).items()]
        return {name: values for part in parts for name, values in part.items()}

    patch.setattr(gradient, "_clip_and_sum_one_part", planted)


def no_numbers_let_through(patch):
    original = gradient._factors

    def planted(terms, present, *arguments):
        factors = original(terms, present, *arguments)
        return torch.where(terms.sum(dim=0).isfinite(), factors, torch.ones_like(factors))

    patch.setattr(gradient, "_factors", planted)
    patch.setattr(Dense, "finite", lambda self: self)
    for engine in ("book_keeping", "vmap"):
        patch.setitem(engines.ENGINES, engine, engines.ENGINES["loop"])


def cancellation_in_the_norm(patch):
    original = gradient._squares
    patch.setattr(gradient, "_squares", lambda values: (original(values).float() + 1e9 - 1e9).double())


def prior_inside_the_clip(patch):
    original = engines.ENGINES["vmap"]

    def planted(objective, weights, x, y):
        own = original(objective, weights, x, y)
        return {name: Dense(values.values + weights[name]) for name, values in own.items()}

    patch.setitem(engines.ENGINES, "book_keeping", planted)


def mixing_not_refused(patch):
    refusals = ("mixing", "state", "shared_draws", "dependence_on_size", "dependence_on_kinds")
    for name in (f"refuse_{what}" for what in refusals):
        patch.setattr(trial.Trial, name, lambda *_: None)
    patch.setattr(trial.Trial, "agrees", lambda *_: True)  # or an engine is chosen in which records cannot meet


def shuffled_batches(patch):
    def planted(self, first_step, end):
        generator = np.random.default_rng(0)
        size = round(self.num_records * self.sampling_rate)
        rounds = [generator.permutation(self.num_records) for _ in range(end * size // self.num_records + 1)]
        order = np.concatenate(rounds)
        rows = [np.sort(order[step * size : (step + 1) * size]) for step in range(first_step, end)]
        return np.concatenate(rows), np.array([len(own) for own in rows])

    patch.setattr(PoissonSampler, "in_a_row", planted)


def rate_from_the_data(patch):
    def sampler(self):
        return PoissonSampler(len(self.records), self.plan.batch_size / len(self.records), self.randomness)

    patch.setattr(work.Work, "sampler", property(sampler))


def norms_in_the_log(patch):
    norms = []
    original = training.Run.release

    def noted(clipped, noise_multiplier):
        norms.append(sum(float(values.norm()) for values in clipped.gradients.values()))
        return clipped, noise_multiplier

    def release(self, *arguments):
        found = original(self, *arguments)
        return replace(found, settings={**found.settings, "mean_norm": sum(norms[-20:]) / 20})

    before_noise(noted)(patch)
    patch.setattr(training.Run, "release", release)


@dataclass(frozen=True)
class Bug:
    """What is wrong, how it is planted, and what must notice."""

    name: str
    plant: Callable
    detector: Callable


def with_the_first_twice(batches):
    return ((torch.cat([x, x[:1]]), torch.cat([y, y[:1]])) for x, y in batches)


BUGS = [
    Bug("noise halved", before_noise(lambda sums, noise: (sums, noise / 2)), mechanism),
    Bug("noise drawn once and used again", same_noise_in_every_step, mechanism),
    Bug("noise seeded from a constant", constant_seed, mechanism),
    Bug("noise that is the same in every tensor", same_noise_in_every_tensor, mechanism),
    Bug("noise that repeats after 200 steps", noise_that_repeats, mechanism),
    Bug("noise cut off", noise_cut_off, mechanism),
    Bug("a step without noise", last_step_without_noise, mechanism),
    Bug("no noise on empty batches", empty_batches_without_noise, mechanism),
    Bug("noise only on what is written to a checkpoint", noise_for_the_journal_alone, mechanism),
    Bug("sums without noise in the update", sums_without_noise_in_the_update, mechanism),
    Bug("half of epsilon", half_of_epsilon, mechanism),
    Bug("noise on weights, not on biases", noise_on_weights_alone, mechanism),
    Bug("noise of the right size, but uniform", uniform_noise, mechanism),
    Bug("no clipping", no_clipping, mechanism),
    Bug("clipping left out for the first record", first_record_unclipped, mechanism),
    Bug("clipping left out for one layer", unclipped("2."), mechanism),
    Bug("clipping left out for biases", unclipped("bias"), mechanism),
    Bug("clip norm for each layer instead of all together", clip_for_each_layer, mechanism),
    Bug("mean taken before the noise", of_the_batch_that_came(mean_before_noise), mechanism),
    Bug(
        "divided by the size of the batch that came", of_the_batch_that_came(divided_by_the_batch_that_came), mechanism
    ),
    Bug("float32 cancellation in the norm", cancellation_in_the_norm, mechanism),
    Bug("NaN let through", no_numbers_let_through, mechanism),
    Bug("records that see the mean of their batch", mixing_not_refused, mechanism_of_a_mixing_model),
    Bug("the prior's gradient inside the clip", prior_inside_the_clip, own_gradients),
    Bug("shuffled batches accounted as Poisson samples", shuffled_batches, sampling),
    Bug("sampling rate taken from the number of records", rate_from_the_data, sampling),
    Bug("batches cut at the expected size", batches_cut_at_the_expected_size, sampling),
    Bug("one record counted twice", of_batches(with_the_first_twice), sampling),
    Bug("empty batches skipped", of_batches(lambda batches: (own for own in batches if len(own[0]))), sampling),
    Bug("a resumed run forgets what was spent", lambda p: p.setattr(Checkpoint, "charges", lambda _: []), resuming),
    Bug("values without noise in the log", norms_in_the_log, visible),
]
