"""Bugs that only some settings show: levels, rows per person, automatic clipping, joint BBP, size."""

from dataclasses import replace

import torch
from torch import nn

import dpbnn
from dpbnn.clipping import gradient, summation
from dpbnn.clipping.forms.joint import Joint
from dpbnn.clipping.forms.per_record import Dense, Outer
from dpbnn.privacy.noise import cpu as cpu_noise
from dpbnn.privacy.noise.randomness import CHUNK, Randomness
from dpbnn.training.steps import eager
from dpbnn.types import ClippedSum
from tests.audit.planted.common import PLAN, Bug, after_clipping, attacked

TWO_LEVELS = replace(PLAN, noise_multiplier=((1.0, 2), (1.5, 2)), clip_norm=((0.7, 2), (1.4, 2)))


def levels():
    """`dpbnn audit`, two levels."""
    return attacked(plan=TWO_LEVELS)


def several_rows():
    """`dpbnn audit`, three rows per person."""
    return attacked(plan=replace(PLAN, max_records_per_person=3))


def automatic_clipping():
    """`dpbnn audit`, automatic clipping."""
    return attacked(plan=replace(PLAN, clipping="automatic"))


def joint():
    """`dpbnn audit`, joint BBP."""
    return attacked(method=dpbnn.BBP(1.0, form="joint", num_draws=2))


def many_weights():
    """`dpbnn audit`, more than 2^19 weights."""
    return attacked(nn.Sequential(nn.Linear(800, 660), nn.Tanh(), nn.Linear(660, 3)), columns=800)


def many_records():
    """`dpbnn audit`, more than 4096 records."""
    return attacked(nn.Linear(5, 3), others=summation.LARGEST_PART, observations=1_500)


def of_the_first_level(patch):
    """The clip norm of the first step scales the noise of all."""
    original, first = eager.add_noise, []

    def planted(clipped, noise_multiplier, randomness, step):
        first.append(clipped.sensitivity)
        return original(replace(clipped, sensitivity=first[0]), noise_multiplier, randomness, step)

    patch.setattr(eager, "add_noise", planted)


def noise_of_the_first_level(patch):
    original = dpbnn.PrivacyPlan.noise_at
    patch.setattr(dpbnn.PrivacyPlan, "noise_at", lambda self, step: original(self, 0))


def clip_norm_of_the_last_level(patch):
    """The sum is clipped to another level's norm than the one that the noise is for."""
    after_clipping(lambda clipped, again, _: replace(again(clip_norm=1.4), sensitivity=clipped.sensitivity))(patch)


def charged_as_one(patch):
    original = dpbnn.PrivacyPlan.account
    patch.setattr(
        dpbnn.PrivacyPlan,
        "account",
        lambda self, *how, **more: original(replace(self, max_records_per_person=1), *how, **more),
    )


def rows_of_a_person_together(patch):
    """Equal rows, such as those of one person, are clipped as if each had a fraction of the norm."""
    original = gradient._factors

    def planted(terms, *how):
        norms = terms.sum(dim=0)
        alike = (norms[:, None] == norms[None]).sum(dim=1)
        return original(terms, *how) * alike.clamp(max=3)

    patch.setattr(gradient, "_factors", planted)


def of_automatic_factors(change):
    def plant(patch):
        original = gradient._factors

        def planted(terms, present, settings):
            factors = original(terms, present, settings)
            norms = terms.sum(dim=0).sqrt()
            kept = (factors > 0) & (norms > 0)
            changed = torch.where(kept, change(settings.clip_norm, norms), factors)
            return changed if settings.style == "automatic" else factors

        patch.setattr(gradient, "_factors", planted)

    return plant


def mean_and_spread_apart(patch):
    original = gradient._clip_and_sum_one_part

    def planted(gradients, present, settings, observe, total, targets):
        how = present, settings, observe
        if not any(isinstance(form, Joint) for form in gradients.values()):
            original(gradients, *how, total, targets)
            return
        dense = {name: form.dense().values for name, form in dict(gradients).items()}
        halves, anywhere = ({}, {}), {name: target.anywhere() for name, target in targets.items()}
        for index, half in enumerate(halves):
            original({name: Dense(values[:, index]) for name, values in dense.items()}, *how, half, anywhere)
        for name in dense:
            total[name] = total.get(name, 0) + torch.stack([half[name] for half in halves])

    patch.setattr(gradient, "_clip_and_sum_one_part", planted)


def same_noise_in_mean_and_spread(patch):
    original = Randomness.add_normals

    def planted(self, tensors, scale, step):
        is_joint = all(len(values) == 2 for values in tensors)
        for part in [[values[half] for values in tensors] for half in (0, 1)] if is_joint else [tensors]:
            original(self, part, scale, step)

    patch.setattr(Randomness, "add_normals", planted)


def chunks_share_a_key(patch):
    original = cpu_noise.add_normals
    patch.setattr(
        cpu_noise,
        "add_normals",
        lambda tensors, scale, generator, chunk: original(tensors, scale, lambda part: generator(0), chunk),
    )


def noise_on_the_first_chunk(patch):
    original = cpu_noise._grouped
    patch.setattr(cpu_noise, "_grouped", lambda tensors, chunk: iter(list(original(tensors, chunk))[:1]))


def large_layers_not_measured(patch):
    original = gradient._squares

    def planted(values):
        found = original(values)
        return torch.zeros_like(found) if isinstance(values, Outer) and values.shape.numel() > CHUNK else found

    patch.setattr(gradient, "_squares", planted)


def types_tell_the_number(clipped, _, x):
    return ClippedSum(clipped.gradients, clipped.sensitivity)


BUGS = [
    Bug("noise scaled by the first level's clip norm", of_the_first_level, levels),
    Bug("noise multiplier of the first level in all steps", noise_of_the_first_level, levels),
    Bug("clipped to another level's norm than the noise is for", clip_norm_of_the_last_level, levels),
    Bug("three rows of a person charged as one", charged_as_one, several_rows),
    Bug("rows that are alike count more than once", rows_of_a_person_together, several_rows),
    Bug(
        "automatic clipping with a negative offset",
        of_automatic_factors(lambda norm, norms: norm / (norms - 0.01).clamp_min(1e-6)),
        automatic_clipping,
    ),
    Bug(
        "automatic clipping that divides by the squared norm",
        of_automatic_factors(lambda norm, norms: norm / (norms.square() + 0.01)),
        automatic_clipping,
    ),
    Bug("mean and spread of joint BBP clipped apart", mean_and_spread_apart, joint),
    Bug("the same noise in mean and spread of joint BBP", same_noise_in_mean_and_spread, joint),
    Bug("chunks of noise that share a key", chunks_share_a_key, many_weights),
    Bug("noise on the first chunk alone", noise_on_the_first_chunk, many_weights),
    Bug("large layers left out of the norm", large_layers_not_measured, many_weights),
    Bug("types that tell how many records there were", after_clipping(types_tell_the_number), many_records),
]
