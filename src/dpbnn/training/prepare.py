"""What `fit` settles before the first step, from settings alone: types, the plan's noise, the device, and warnings."""

import copy
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import distributed, nn

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.errors import DpbnnError
from dpbnn.methods import Method, Prepared
from dpbnn.models.dropout import dropout_layers
from dpbnn.models.likelihoods import Likelihood, checked_likelihood
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import combined, runs_of

__all__ = ["check_types", "model_for", "on_current_device", "prepared_by", "refuse_several_processes", "warn_of"]

NOISE_TOLERANCE = 1e-6
"""Relative: what rounding may take off the plan's noise; epsilon is reported for what is left."""


def refuse_several_processes() -> None:
    """Refuse to spend in one of several processes, of torchrun or a process group: no ledger has all their releases."""
    started = os.environ.get("WORLD_SIZE", "")
    size = int(started) if started.isdecimal() else 1
    if distributed.is_available() and distributed.is_initialized():
        size = max(size, distributed.get_world_size())
    if size > 1:
        raise DpbnnError(
            f"A fit must run in one process, got a world size of {size}: each process would make a release that is "
            "charged alone. Run it without torchrun (and without WORLD_SIZE in the environment)."
        )


def check_types(model: object, method: object, plan: object, likelihood: object) -> None:
    """Refuse arguments of a wrong type."""
    if not isinstance(model, nn.Module):
        _validate.refuse("model", "a torch.nn.Module", model)
    if not isinstance(plan, PrivacyPlan):
        _validate.refuse("plan", "a PrivacyPlan", plan)
    checked_likelihood(likelihood)
    if not isinstance(method, Method):
        _validate.refuse("method", "a method such as SGD(learning_rate=0.25)", method)
    if not any(True for _ in model.parameters()):
        _validate.refuse("model", "a module with parameters", type(model).__name__)


def warn_of(prepared: Prepared, likelihood: Likelihood) -> tuple[str, ...]:
    """Give all remarks on the settings as warnings, before any budget is spent, and return them."""
    plan = prepared.plan
    if not plan.is_private:
        return ()
    least = min(norm for norm, _ in runs_of(plan.clip_norm, plan.steps))
    remarks = (*prepared.remarks, *likelihood.remarks(least))
    for remark in remarks:
        warn(remark)
    return remarks


def prepared_by(method: Method[Any], plan: PrivacyPlan) -> Prepared:
    """What the method makes of the plan: nothing of it may change but the noise, which may only grow."""
    prepared = method.prepare(plan)
    changed = prepared.plan
    if changed == plan:
        return prepared
    if replace(changed, noise_multiplier=plan.noise_multiplier) != plan:
        raise DpbnnError(f"{type(method).__name__}.prepare must change the plan's noise alone, got {changed}.")
    ratios = combined(lambda now, before: now / before, plan.steps, changed.noise_multiplier, plan.noise_multiplier)
    if any(ratio < 1 - 2 * NOISE_TOLERANCE for ratio, _ in runs_of(ratios, plan.steps)):
        raise DpbnnError(f"{type(method).__name__}.prepare must not lower the plan's noise, got {changed}.")
    return prepared


def model_for(method: Method[Any], model: nn.Module, device: str | torch.device | None) -> nn.Module:
    """The model, or a copy of it where it is to run on another device, or its dropout layers are to be switched on."""
    layers = dropout_layers(model) if method.has_dropout else []
    if method.has_dropout and not layers:
        raise DpbnnError(
            f"{type(method).__name__} needs a model with dropout layers, got none in {type(model).__name__}; "
            "dpbnn.with_dropout(model, rate=0.1) places one after every activation."
        )
    try:
        is_on_device = device is None or torch.device(device) == next(model.parameters()).device
        if is_on_device and all(layer.training for _, layer in layers):
            return model
        copied = copy.deepcopy(model).to(device)
    except (RuntimeError, AssertionError) as error:
        raise DpbnnError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    if method.has_dropout:
        for _, layer in dropout_layers(copied):
            layer.training = True
    return copied


def on_current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, kernels and streams of this thread go to this CUDA device by default."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
