"""Bugs between a record and the clipped sum."""

from dataclasses import replace

import torch
from torch import nn

import dpbnn
from dpbnn.audit.rounding import audit_rounding
from dpbnn.clipping import engines, gradient, parts, summation
from dpbnn.clipping.check import compatibility, trial
from dpbnn.clipping.forms.per_record import Dense, Destination
from dpbnn.training.steps import eager
from dpbnn.training.steps import work as steps_work
from dpbnn.types import ClippedSum
from tests.audit.planted.common import PLAN, Bug, X, Y, after_clipping, attacked, clip_by, network, scaled


class Centred(nn.Module):
    """Records that see the mean of their batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x - x.mean(dim=0) if len(x) > 1 else x)


def mechanism():
    """`dpbnn audit`, the mechanism."""
    return attacked()


def mechanism_of_a_mixing_model():
    """`check_model` refuses it; if that fails, `dpbnn audit`."""
    try:
        return attacked(Centred())
    except dpbnn.DpbnnError:
        return False


def mechanism_of_micro_batches():
    """`dpbnn audit`, micro-batches."""
    return attacked(execution=dpbnn.Execution(micro_batch_size=8))


def mechanism_of_learned_noise():
    """`dpbnn audit`, a learned noise level."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    return attacked(model, dpbnn.HomoscedasticGaussian(), torch.zeros(0, 1))


def mechanism_of_a_frozen_layer():
    """`dpbnn audit`, a frozen layer."""
    model = network()
    model[0].requires_grad_(False)
    return attacked(model)


def rounding():
    """`dpbnn audit`, rounding."""
    return not audit_rounding().holds


def own_gradients():
    """Contract: a record's part is its own gradient by plain autograd, clipped over all weights together."""
    model = network()
    for x, y in zip(X[:8] * 3, Y[:8], strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        gradients = dict(
            zip(dict(model.named_parameters()), torch.autograd.grad(loss, model.parameters()), strict=True)
        )
        norm = float(torch.cat([values.ravel() for values in gradients.values()]).norm())
        factor = min(1.0, PLAN.clip_norm / (1 + gradient.ROUNDING_ROOM) / norm)
        found = eager.clip_and_sum(
            compatibility.check_model(model, dpbnn.Categorical(), x[None], y[None]),
            {name: values.detach() for name, values in model.named_parameters()},
            x[None],
            y[None],
            gradient.ClippingSettings(PLAN.clip_norm),
        )
        if not all(torch.allclose(found.gradients[name], factor * gradients[name], atol=1e-5) for name in gradients):
            return True
    return False


def of_the_batch_that_came(change):
    """A patch of `add_noise` that knows how many records there were."""

    def plant(patch):
        original_clip, original_noise, sizes = eager.clip_and_sum, eager.add_noise, []

        def clip(checked, where, x, *arguments, **how):
            sizes.append(max(1, len(x)))
            return original_clip(checked, where, x, *arguments, **how)

        clip_by(patch, clip)
        patch.setattr(eager, "add_noise", lambda sums, *how: change(original_noise, sums, sizes[-1], *how))

    return plant


def mean_before_noise(add_noise, sums, size, *how):
    return add_noise(scaled(sums, 1 / size), *how)


def divided_by_the_batch_that_came(add_noise, sums, size, *how):
    return scaled(add_noise(sums, *how), 4 / size)


def unclipped(part):
    def change(clipped, again, _):
        raw = again(clip_norm=1e6)
        mixed = {name: raw.gradients[name] if part in name else clipped.gradients[name] for name in raw.gradients}
        return ClippedSum(mixed, clipped.sensitivity, clipped.types)

    return after_clipping(change)


def no_clipping(patch):
    after_clipping(lambda clipped, again, _: replace(again(clip_norm=1e9), sensitivity=clipped.sensitivity))(patch)


def of_factors(change):
    """A patch of what records are multiplied with; `change` gets it, and the terms of their squared norms."""

    def plant(patch):
        original = gradient._factors

        def planted(terms, present, settings):
            return change(original(terms, present, settings).clone(), terms)

        patch.setattr(gradient, "_factors", planted)

    return plant


def first_record_unclipped(factors, _):
    factors[:1] = 1.0
    return factors


def norms_of_the_batch_before(patch):
    original, last = gradient._factors, []

    def planted(terms, *how):
        stale = last.pop() if last and last[-1].shape == terms.shape else torch.zeros_like(terms)
        last[:] = [terms]
        return original(stale, *how)

    patch.setattr(gradient, "_factors", planted)


def clip_for_each_layer(patch):
    original = gradient._clip_and_sum_one_part

    def planted(gradients, *arguments):
        for name, form in dict(gradients).items():
            original({name: form}, *arguments)

    patch.setattr(gradient, "_clip_and_sum_one_part", planted)


def means_of_micro_batches(patch):
    """Each micro-batch's mean gradient is clipped, where each record's should be."""
    original = eager.clip_and_sum

    def planted(checked, where, x, y, settings, **how):
        size, clip_norm = settings.micro_batch_size, settings.clip_norm
        if size is None or not len(x):
            return original(checked, where, x, y, settings, **how)
        total, unclipped = None, replace(settings, clip_norm=1e9, micro_batch_size=None)
        for own_x, own_y in zip(x.split(size), y.split(size), strict=True):
            part = scaled(original(checked, where, own_x, own_y, unclipped, **how), 1 / len(own_x))
            norm = float(torch.cat([values.ravel() for values in part.gradients.values()]).norm())
            part = scaled(part, len(own_x) * min(1.0, clip_norm / max(norm, 1e-12)))
            sums = part.gradients if total is None else {n: total.gradients[n] + v for n, v in part.gradients.items()}
            total = ClippedSum(sums, clip_norm, part.types)
        return total

    clip_by(patch, planted)


def frozen_gradients_leak(patch):
    """What records do to a frozen layer joins the gradient of a trained bias, beyond the clip."""
    original = eager.clip_and_sum

    def planted(checked, where, x, y, settings, **how):
        clipped = original(checked, where, x, y, settings, **how)
        model = checked.objective.model
        if len(x) and isinstance(model, nn.Sequential) and not model[0].weight.requires_grad:
            weight = model[0].weight.detach().requires_grad_()
            outputs = torch.func.functional_call(model, {"0.weight": weight}, (x,))
            loss = nn.functional.cross_entropy(outputs, y, reduction="sum")
            (leaked,) = torch.autograd.grad(loss, weight)
            clipped.gradients["2.bias"] += leaked.nan_to_num(0.0, 0.0, 0.0).ravel()[:3]
        return clipped

    clip_by(patch, planted)


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
        gradients = original(objective, weights, x, y)
        return {name: Dense(values.values + weights[name]) for name, values in gradients.items()}

    patch.setitem(engines.ENGINES, "book_keeping", planted)


def mixing_not_refused(patch):
    for name in ("mixing", "state", "shared_draws", "dependence_on_size", "dependence_on_kinds"):
        patch.setattr(trial.Trial, f"refuse_{name}", lambda *_: None)
    patch.setattr(trial.Trial, "agrees", lambda *_: True)  # or an engine is chosen in which records cannot meet


def sums_in_float32(patch):
    for module in (gradient, parts, steps_work, summation):
        patch.setattr(module, "LARGEST_PART", 2**30)


def sums_in_a_row(patch):
    patch.setattr(summation, "SHARE", 1e9)
    sums_in_float32(patch)


def parts_stored_in_float32(patch):
    original = gradient._clip_and_sum_one_part

    def planted(gradients, present, settings, observe, total, destinations):
        part = {}
        in_float32 = {name: Destination(largest_batch=into.largest_batch) for name, into in destinations.items()}
        original(gradients, present, settings, observe, part, in_float32)
        for name, values in part.items():
            total[name] = total.get(name, 0) + values.float().double()

    patch.setattr(gradient, "_clip_and_sum_one_part", planted)


BUGS = [
    Bug("no clipping", no_clipping, mechanism),
    Bug("clipping left out for the first record", of_factors(first_record_unclipped), mechanism),
    Bug("clipping left out for one layer", unclipped("2."), mechanism),
    Bug("clipping left out for biases", unclipped("bias"), mechanism),
    Bug("clipping left out for a learned noise level", unclipped("likelihood"), mechanism_of_learned_noise),
    Bug("clip norm for each layer instead of all together", clip_for_each_layer, mechanism),
    Bug("records clipped by the norms of the batch before", norms_of_the_batch_before, mechanism),
    Bug("means of micro-batches clipped, not records", means_of_micro_batches, mechanism_of_micro_batches),
    Bug("gradients of a frozen layer leak into the sum", frozen_gradients_leak, mechanism_of_a_frozen_layer),
    Bug("mean taken before the noise", of_the_batch_that_came(mean_before_noise), mechanism),
    Bug(
        "divided by the size of the batch that came", of_the_batch_that_came(divided_by_the_batch_that_came), mechanism
    ),
    Bug("float32 cancellation in the norm", cancellation_in_the_norm, mechanism),
    Bug("sums over many records in float32", sums_in_float32, rounding),
    Bug("sums of the parts of a batch stored in float32", parts_stored_in_float32, rounding),
    Bug("records added up in a row in float32", sums_in_a_row, rounding),
    Bug("NaN let through", no_numbers_let_through, mechanism),
    Bug("records that see the mean of their batch", mixing_not_refused, mechanism_of_a_mixing_model),
    Bug("the prior's gradient inside the clip", prior_inside_the_clip, own_gradients),
]
