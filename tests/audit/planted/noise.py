"""Bugs of the noise of a step."""

import torch

from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.training.steps import eager
from dpbnn.types import NoisySum
from tests.audit.planted.common import Bug, attacked, before_noise


def mechanism():
    """`dpbnn audit`, the mechanism."""
    return attacked()


def mechanism_at_length():
    """`dpbnn audit`, the mechanism."""
    return attacked(observations=60_000)


def of_noise(change):
    """A patch of the noise that is added; `change` gets it, and how to draw that of a step."""

    def plant(patch):
        original = Randomness.add_normals

        def planted(self, tensors, scale, step):
            def drawn(at):
                alone = [torch.zeros_like(values) for values in tensors]
                original(self, alone, scale, at)
                return alone

            for values, noise in zip(tensors, change(drawn, step, scale), strict=True):
                values += noise

        patch.setattr(Randomness, "add_normals", planted)

    return plant


def noise_on_weights_alone(patch):
    original = Randomness.add_normals
    patch.setattr(
        Randomness,
        "add_normals",
        lambda self, tensors, scale, step: original(
            self, [values for values in tensors if values.dim() > 1], scale, step
        ),
    )


def uniform_noise(patch):
    def planted(self, tensors, scale, step):
        generator = torch.Generator().manual_seed(self.torch_seed("noise", step))
        for values in tensors:
            values += scale * 12**0.5 * (torch.rand(values.shape, generator=generator) - 0.5)

    patch.setattr(Randomness, "add_normals", planted)


def same_noise_in_every_tensor(patch):
    original = Randomness.add_normals

    def planted(self, tensors, scale, step):
        for values in tensors:
            original(self, [values], scale, step)

    patch.setattr(Randomness, "add_normals", planted)


def opposite_in_pairs(drawn, step, _):
    return [noise * (-1) ** step for noise in drawn(step // 2)]


def a_step_without_noise(patch):
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

    def planted(self, step):
        with_noise = eager.add_noise
        eager.add_noise = lambda sums, noise, *how: with_noise(sums, 1e-9 * noise, *how)
        try:
            return self.take(original(self, step), step)
        finally:
            eager.add_noise = with_noise

    patch.setattr(eager.EagerSteps, "release_and_take", planted)


def sums_without_noise_in_the_update(patch):
    original_noise, original_take, raw = eager.add_noise, eager.EagerSteps.take, {}

    def noisy(sums, *how):
        raw.update({name: values.clone() for name, values in sums.gradients.items()})
        return original_noise(sums, *how)

    def take(self, released, step):
        both = {name: values + 5 * raw[name] for name, values in released[0].gradients.items()}
        return original_take(self, [NoisySum(both)], step)

    patch.setattr(eager, "add_noise", noisy)
    patch.setattr(eager.EagerSteps, "take", take)


def constant_seed(patch):
    patch.setattr(Randomness, "from_operating_system", staticmethod(lambda: Randomness(bytes(32))))


BUGS = [
    Bug("noise halved", before_noise(lambda sums, noise: (sums, noise / 2)), mechanism),
    Bug("noise drawn once and used again", of_noise(lambda drawn, step, scale: drawn(0)), mechanism),
    Bug("noise seeded from a constant", constant_seed, mechanism),
    Bug("noise that is the same in every tensor", same_noise_in_every_tensor, mechanism),
    Bug(
        "noise that repeats after 200 steps",
        of_noise(lambda drawn, step, scale: drawn(step % 200)),
        mechanism_at_length,
    ),
    Bug(
        "noise cut off",
        of_noise(lambda drawn, step, scale: [values.clamp(-3.4 * scale, 3.4 * scale) for values in drawn(step)]),
        mechanism_at_length,
    ),
    Bug("a step without noise", a_step_without_noise, mechanism),
    Bug("no noise on empty batches", empty_batches_without_noise, mechanism),
    Bug("noise only on what is written to a checkpoint", noise_for_the_journal_alone, mechanism),
    Bug("sums without noise in the update", sums_without_noise_in_the_update, mechanism),
    Bug("noise on weights, not on biases", noise_on_weights_alone, mechanism),
    Bug("noise of the right size, but uniform", uniform_noise, mechanism),
    Bug("opposite noise in every second step", of_noise(opposite_in_pairs), mechanism),
    Bug(
        "noise drawn in bfloat16",
        of_noise(lambda drawn, step, scale: [values.bfloat16().to(values.dtype) for values in drawn(step)]),
        mechanism,
    ),
]
