"""Which models can be private: `check_model` refuses the rest by name, with the cure.

A model qualifies if each record's loss depends on that record alone. Known offenders are refused by their type;
everything else is tried on synthetic records (`dpbnn.clipping.check.model_check`), never on the user's data. A model
that will be slow gets a warning that names what makes it so.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from dpbnn._internals import AnyBatchNorm, AnyInstanceNorm, is_compiled
from dpbnn._warn import warn
from dpbnn.clipping.check.model_check import TrialResult, refuse_mixing_in, try_out
from dpbnn.clipping.check.synthetic import synthetic_records
from dpbnn.clipping.engines.book_keeping import Trace
from dpbnn.clipping.engines.layout import ModelLayout
from dpbnn.clipping.objective import Objective
from dpbnn.clipping.rules import rule_for
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Likelihood
from dpbnn.models.replica import replica, state_of, structure_of
from dpbnn.types import Weights

__all__ = ["CheckedModel", "check_model"]

MANY_WEIGHTS = 2**14
"""From here on it takes long to write a gradient out for every record, whatever the layer."""
RECURRENT = (nn.RNNBase, nn.RNNCellBase)


@dataclass(frozen=True)
class CheckedModel:
    """A model that keeps records apart, with the fastest engine that is right for it.

    `model` is as it was given; what runs is a replica of it, in `objective`. `draws` says that it draws random numbers.
    `numbers_written_out` is how many numbers a record's gradient takes where products must be multiplied out.
    """

    model: nn.Module
    objective: Objective
    likelihood_weights: Weights
    num_outputs: int
    engine: str
    numbers_written_out: int
    draws: bool


_results: WeakKeyDictionary[nn.Module, dict[Any, TrialResult]] = WeakKeyDictionary()


def check_model(
    model: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    precision: str | None = None,
    must_try: bool = False,
) -> CheckedModel:
    """Refuse a model that cannot be private; of `x` and `y` only shapes and types are looked at.

    `precision` is that of `Execution`, in which the model is tried out too. A model that was tried before is tried
    again if its state has changed, as far as `dpbnn.models.replica.state_of` sees it, or if it must be, as in `fit`.

    Raises:
        DpbnnError: the module's name, what is wrong with it and the cure.

    Guarantees:
        A model that mixes records or keeps anything of them, as far as synthetic records show, is refused.
        The decision does not depend on the data.
        The model is left as it is, at every moment.
    """
    _refuse_known_offenders(model)
    rules = tuple(map(rule_for, model.modules()))
    key = (likelihood, rules, state_of(model, likelihood), x.shape[1:], x.dtype, x.device, y.shape[1:], y.dtype)
    known = _results.setdefault(model, {})
    is_new, working = must_try or key not in known, replica(model)
    if is_new:
        before = structure_of(model)
        result = try_out(working, likelihood, x, y)
        if structure_of(model) != before:
            raise DpbnnError(
                "The model is changed by runs of its copy: something in it refers to the model itself, where no copy "
                "can follow, and keeps what records leave there without noise; use the module that it is called with."
            )
        known[key] = result
    result = known[key]
    likelihood_weights = {name: values.clone() for name, values in result.likelihood_weights.items()}
    objective = Objective(working, likelihood, tuple(likelihood_weights), result.layout)
    weights = objective.model_weights() | likelihood_weights
    if is_new and result.engine != "book_keeping":
        _warn_of_slow_modules(objective, weights, result, x, y)
    if precision not in (None, "float32"):
        refuse_mixing_in(precision, objective, weights, x, y, result.num_outputs)
    rest = result.num_outputs, result.engine, result.numbers_written_out, result.draws
    return CheckedModel(model, objective, likelihood_weights, *rest)


def _refuse_known_offenders(model: nn.Module) -> None:
    for name, module in model.named_modules():
        reason = _reason_against(module)
        if reason:
            raise DpbnnError(f"{type(module).__name__} '{name}' {reason}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise DpbnnError("The model has no parameter to train: all have requires_grad=False; unfreeze some.")


def _reason_against(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by TorchScript, which cannot be watched; pass the plain module."
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "wraps the model; pass the plain module inside it."
    if is_compiled(module):
        return "is compiled by torch.compile, which cannot be watched; pass the plain module."
    if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
        return "has no shape yet; run it once on a synthetic input."
    if isinstance(module, AnyBatchNorm) and (module.training or not module.track_running_stats):
        return "mixes records; use GroupNorm (LayerNorm for plain features), or freeze it with eval()."
    if isinstance(module, AnyInstanceNorm) and module.training and module.track_running_stats:
        return "keeps running statistics; use track_running_stats=False, or freeze it with eval()."
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "rewrites the rows that records ask for, without noise; use max_norm=None."
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.scale_grad_by_freq:
        return "mixes records by counting their tokens together; use scale_grad_by_freq=False."
    return None


def _warn_of_slow_modules(objective: Objective, weights: Weights, result: TrialResult, x: Tensor, y: Tensor) -> None:
    """Name what book-keeping has no rule for, if that will be felt."""
    slow = _slow_modules(objective, weights, result.num_outputs, x, y)
    is_recurrent = any(isinstance(module, RECURRENT) for module in slow.values())
    if result.engine == "loop":
        how = "Neither book-keeping nor vmap can differentiate {}; gradients are taken one record at a time"
    elif is_recurrent or sum(values.numel() for values in objective.parameters.values()) >= MANY_WEIGHTS:
        how = "Book-keeping has no rule for {}; gradients are written out for every record, by vmap"
    else:
        return
    names = [f"{type(module).__name__} '{name}'" for name, module in slow.items()] or ["this model"]
    named = ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
    cure = "docs/clipping.md says which layers are fast."
    if is_recurrent:
        cure = "Written with nn.Linear, as docs/clipping.md shows, it is several times faster."
    warn(f"{how.format(named)}, exactly but slowly. {cure}")


def _slow_modules(
    objective: Objective, weights: Weights, num_outputs: int, x: Tensor, y: Tensor
) -> dict[str, nn.Module]:
    """The modules whose weights book-keeping loses sight of, on synthetic records."""
    with drawing_from(Generators.seeded(0)), torch.inference_mode(False):
        synthetic = synthetic_records(objective, x, y, 2, num_outputs)
        lost = Trace.of(objective.with_layout(ModelLayout({}, None)), weights, *synthetic).uncovered
    slow = {}
    for name, (module, names) in objective.owners.items():
        if lost & set(names.values()) and rule_for(module) is None and not _is_attention(module):
            if isinstance(module, ParametrizationList):
                name = name.rpartition(".parametrizations")[0]
            slow[name] = objective.model.get_submodule(name)
    return slow


def _is_attention(module: nn.Module) -> bool:
    """Book-keeping sees through it, though not in this trace, which expects the records first everywhere."""
    return isinstance(module, (nn.MultiheadAttention, NonDynamicallyQuantizableLinear))
