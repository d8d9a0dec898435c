"""Lint rules about the plan, the network, the method, and how a run is made."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpbnn.clipping import CheckedModel, ClippingSettings, check_model, clip_and_sum
from dpbnn.data.arrays import as_array
from dpbnn.data.records import as_records
from dpbnn.device.generators import Generators
from dpbnn.errors import DpbnnError
from dpbnn.lint.finding import Subject, rule
from dpbnn.methods import SGLD
from dpbnn.models.likelihoods import Likelihood
from dpbnn.models.priors import Gaussian
from dpbnn.privacy.accountants import bounds
from dpbnn.schedule import runs_of

LARGEST_EPSILON = 10.0
NEARLY_ALL, NEARLY_NONE = 0.99, 0.01
FEW = 1000
"""How many public records are tried against a clip norm."""


@rule("hole", "Whatever is released shows the records.", "Calibrate a plan: PrivacyPlan.for_budget.")
def _no_noise(subject: Subject) -> str:
    return "" if subject.plan.is_private else "the plan adds no noise"


@rule(
    "hole",
    "Clipping bounds what a record adds, not what it does to others.",
    "Use layers that treat each record alone, such as GroupNorm or LayerNorm.",
)
def _records_mix(subject: Subject) -> str:
    is_complete = subject.y is not None or not isinstance(subject.x, Tensor | np.ndarray)
    if subject.model is None or subject.likelihood is None or subject.x is None or not is_complete:
        return ""
    try:
        _checked(subject.model, subject.likelihood, subject.x, subject.y)
    except DpbnnError as error:
        return str(error).rstrip(".")
    return ""


def _checked(model: nn.Module, likelihood: Likelihood, x: Any, y: Any) -> CheckedModel:
    weight = next(model.parameters())
    if y is not None:  # an empty list has lost the shape of its rows
        x, y = ((as_array(part) if isinstance(part, list | tuple) else part)[:0] for part in (x, y))
    empty = as_records(x, y, weight.dtype).empty
    return check_model(model, likelihood, *(part.to(weight.device) for part in empty))


@rule("hole", "Whoever knows the seed subtracts the noise.", "Leave unsafe_seed out.")
def _fixed_noise_seed(subject: Subject) -> str:
    return "" if subject.unsafe_seed is None else "sampling and noise come from a seed"


@rule("hole", "They are as private as the records.", "Leave unsafe_diagnostics out.")
def _values_without_noise(subject: Subject) -> str:
    return "values without noise are kept" if subject.unsafe_diagnostics else ""


@rule(
    "weak",
    "With such a delta, publishing a random record would be allowed.",
    "Take delta well below one over the number of records.",
)
def _delta_not_small(subject: Subject) -> str:
    plan = subject.plan
    if not plan.is_private or plan.delta < 1 / plan.dataset_size:
        return ""
    return f"delta is {plan.delta:g} for {plan.dataset_size} records"


@rule("weak", "Odds about a record may change by a factor of e^epsilon.", "Spend less, or do not call it private.")
def _large_epsilon(subject: Subject) -> str:
    epsilon = subject.plan.epsilon()
    return f"epsilon is {epsilon:.3g}" if subject.plan.is_private and epsilon > LARGEST_EPSILON else ""


@rule(
    "weak",
    "An approximation can be too small, and is no bound.",
    "Leave the accountant out: then it is the tightest bound.",
)
def _gdp_only(subject: Subject) -> str:
    quoted = subject.accountant
    return f"epsilon is quoted by {quoted.upper()}" if quoted is not None and quoted not in bounds() else ""


@rule(
    "care",
    "Buffers get no noise: what is in them is released as it is.",
    "Make sure that they hold nothing of the data.",
)
def _buffers(subject: Subject) -> str:
    names = [] if subject.model is None else [name for name, _ in subject.model.named_buffers()]
    return f"the network has buffers ({', '.join(names[:5])})" if names else ""


@rule(
    "care",
    "Samples would show the noise of privacy rather than the posterior.",
    "Lower the rate or the clip norm, or take more steps.",
)
def _temperature(subject: Subject) -> str:
    if subject.method is None or not subject.plan.is_private:
        return ""
    try:
        return " ".join(subject.method.prepare(subject.plan).remarks).rstrip(".")
    except DpbnnError:  # the settings contradict the plan: `fit` refuses them
        return ""


@rule(
    "care",
    "Where the data say little, samples still lie near the first weights, and spread less than the temperature asks.",
    "Take more steps, a larger rate or a narrower prior.",
)
def _short_chain(subject: Subject) -> str:
    """A Gaussian prior of scale s pulls a weight back over s^2 / eta steps."""
    method, steps = subject.method, subject.plan.steps
    if not isinstance(method, SGLD) or not isinstance(method.prior, Gaussian):
        return ""
    time = sum(rate * number for rate, number in runs_of(method.learning_rate, steps))
    relaxation = method.prior.scale**2
    if time >= relaxation:
        return ""
    needed = round(relaxation / time * steps)
    return f"the chain has {steps:,} steps; for the prior alone to forget where it began, it would take some {needed:,}"


@rule(
    "care",
    "Clipping everything loses the gradients' sizes; clipping nothing wastes noise.",
    "Choose it near the median norm on public data.",
)
def _clip_norm(subject: Subject) -> str:
    """By gradients of public records at the initial weights."""
    plan = subject.plan
    if subject.public_data is None or subject.model is None or subject.likelihood is None or not plan.is_private:
        return ""
    try:
        checked = _checked(subject.model, subject.likelihood, *subject.public_data)
    except DpbnnError:
        return ""
    weight = next(subject.model.parameters())
    all_x, all_y = next(as_records(*subject.public_data, weight.dtype).all())
    x, y = (part[:FEW].to(weight.device) for part in (all_x, all_y))
    if len(x) == 0:
        return ""
    norms: list[Tensor] = []
    least = min(norm for norm, _ in runs_of(plan.clip_norm, plan.steps))
    weights, settings = checked.objective.model_weights() | checked.likelihood_weights, ClippingSettings(least)
    masks = Generators.seeded(0)
    clip_and_sum(checked, weights, x, y, settings, masks=masks, observe=lambda part, _: norms.append(part))
    share = float((torch.cat(norms) > least).double().mean())
    if NEARLY_NONE <= share <= NEARLY_ALL:
        return ""
    which = "all" if share > NEARLY_ALL else "none"
    return f"clip norm {least:g} clips nearly {which} of the public records at the initial weights"
