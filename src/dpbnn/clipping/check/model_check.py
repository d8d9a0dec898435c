"""Trying a model out on synthetic records: does it keep records apart, and which engine is right for it?

All that a `Trial` asks for is tried at the given weights and at random ones (a layer that starts at zero hides what
comes before it), on random inputs and targets; the kinds of records that data has (`dpbnn.clipping.check.probes`), at
random weights alone. Nothing of the user's data is looked at but its shape and type.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpbnn._warn import warn
from dpbnn.clipping.check.coverage import find_layout
from dpbnn.clipping.check.synthetic import random_weights, synthetic_records
from dpbnn.clipping.check.trial import Trial, refuse_kept_records
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.engines.book_keeping import Trace
from dpbnn.clipping.engines.layout import ModelLayout
from dpbnn.clipping.objective import Objective
from dpbnn.device.execution import computing_in
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Likelihood, Moments, Probabilities
from dpbnn.types import Weights

__all__ = ["TrialResult", "refuse_mixing_in", "try_out"]

POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


@dataclass(frozen=True)
class TrialResult:
    """What a trial found; it holds no reference to the model. `draws` says that the model draws random numbers."""

    likelihood_weights: Weights
    num_outputs: int
    engine: str
    numbers_written_out: int
    layout: ModelLayout
    draws: bool


def try_out(model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> TrialResult:
    """Refuse a model that does not keep records apart, or choose the engine for it."""
    given = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    full = computing_in("float32", x.device)  # so that nothing coarser is taken for a difference
    with torch.inference_mode(False), torch.enable_grad(), full, ExitStack() as drawing:
        drawing.enter_context(drawing_from(Generators.seeded(0)))
        num_outputs, likelihood_weights = _outputs(Objective(model, likelihood), given, x, y)
        objective = Objective(model, likelihood, tuple(likelihood_weights))
        both = given | likelihood_weights, random_weights(given) | likelihood_weights
        trials = [Trial.of(objective, weights, x, y, num_outputs) for weights in both]
        draws = any(trial.draws for trial in trials)
        if not draws:  # redirecting what nobody draws only takes time
            drawing.close()
        for trial in trials:
            trial.refuse_state()
            trial.refuse_uninformative_losses()
            trial.refuse_mixing()
            trial.refuse_shared_draws()
        trials[-1].refuse_dependence_on_kinds()
        if draws:
            trials[-1].refuse_draws_in_the_backward_pass()
        engine, layout = _fastest_engine(trials[-1])
        trials = [replace(trial, objective=objective.with_layout(layout)) for trial in trials]
        wipes_features = _warn_of_wiped_features(trials[0])
        for trial in () if wipes_features else trials:
            trial.refuse_dependence_on_size(engine)
        written_out = trials[0].numbers_written_out(engine)
        if engine == "book_keeping":
            layout = _with_channels_last(layout, trials[-1])
    return TrialResult(likelihood_weights, num_outputs, engine, written_out, layout, draws)


def refuse_mixing_in(
    precision: str, objective: Objective, weights: Weights, x: Tensor, y: Tensor, outputs: int
) -> None:
    """Refuse a model that keeps records apart in float32, and does not so in a coarser precision."""
    with torch.inference_mode(False), drawing_from(Generators.seeded(0)), computing_in(precision, x.device):
        Trial.of(objective, weights, x, y, outputs).refuse_mixing()


def _outputs(objective: Objective, weights: Weights, x: Tensor, y: Tensor) -> tuple[int, Weights]:
    """How many outputs the model has, and the likelihood's weights for them."""
    refuse_kept_records(objective, weights, synthetic_records(objective, x, y, 4, num_outputs=1)[0])
    synthetic_x, synthetic_y = synthetic_records(objective, x, y, 2, num_outputs=1)
    with torch.no_grad():
        outputs = _first_run(objective, weights, synthetic_x)
        for name in objective.changed_buffers(weights, synthetic_x):
            raise DpbnnError(
                f"Buffer '{name}' changes while the model runs: state that records leave behind has no noise on it; "
                "remove it, or freeze its module with eval()."
            )
    if outputs.shape[:1] != (2,):
        raise DpbnnError(
            f"The model must return one row per record, got shape {list(outputs.shape)} for 2 records of shape "
            f"{list(x.shape[1:])}."
        )
    likelihood = objective.likelihood
    likelihood.check(outputs, synthetic_y)
    initial = likelihood.initial_weights(outputs.shape[-1])
    likelihood_weights = {name: values.to(x.device) for name, values in initial.items()}
    predicted = likelihood.predictive(outputs, likelihood_weights)
    if not isinstance(predicted, (Probabilities, Moments)) or any(len(values) != 2 for values in predicted):
        raise DpbnnError(
            f"{type(likelihood).__name__}.predictive must return Probabilities or Moments with one row per record, got "
            f"{type(predicted).__name__}."
        )
    return outputs.shape[-1], likelihood_weights


def _first_run(objective: Objective, weights: Weights, x: Tensor) -> Tensor:
    try:
        return objective.outputs(weights, x)
    except DpbnnError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        cure = "" if x.is_floating_point() else ". X holds whole numbers; X.astype('float32') if they are quantities"
        raise DpbnnError(
            f"Records of shape {list(x.shape[1:])} and type {x.dtype} do not fit the model: {reason}{cure}"
        ) from error


def _fastest_engine(trial: Trial) -> tuple[str, ModelLayout]:
    layout = find_layout(trial.objective, trial.weights, trial.x, trial.y)
    if layout is not None and trial.agrees(layout):
        return "book_keeping", layout
    if layout == ModelLayout():  # records that are first everywhere, and still not what they are alone
        trial.refuse_dependence_on_size("book_keeping")
    try:
        ENGINES["vmap"](trial.objective, trial.weights, trial.x[:2], trial.y[:2])
    except (RuntimeError, NotImplementedError, ValueError):  # what vmap cannot differentiate, the loop can
        return "loop", ModelLayout()
    return "vmap", ModelLayout()


def _with_channels_last(layout: ModelLayout, trial: Trial) -> ModelLayout:
    """With channels last, where a CPU has images to convolve and pool, and nothing that would show the rounding."""
    pools = any(isinstance(module, POOLS) for module in trial.objective.model.modules())
    plain = all(isinstance(module, (nn.Conv2d, nn.Linear)) for module, _ in trial.objective.owners.values())
    if not (pools and plain and trial.x.device.type == "cpu"):
        return layout
    other = replace(layout, channels_last=True)
    return other if trial.agrees(other) else layout


def _warn_of_wiped_features(trial: Trial) -> bool:
    wipes_out = False
    for use in Trace.of(trial.objective, trial.weights, trial.x[:2], trial.y[:2]).uses:
        if not isinstance(use.call.module, nn.GroupNorm):
            continue
        per_group = use.inputs[0][0].numel() // use.call.module.num_groups
        if per_group <= 2:
            wipes_out = True
            warn(
                f"GroupNorm '{use.call.name}' normalises groups of {per_group} number{'s' * (per_group > 1)} and "
                "wipes its input out; use LayerNorm, or fewer groups."
            )
    return wipes_out
