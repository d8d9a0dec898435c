"""Dropout as a source of uncertainty: where its layers go in a network, and masks that stay on at prediction.

    >>> from torch import nn
    >>> network = with_dropout(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), 0.1)
    >>> [name for name, _ in dropout_layers(network)]
    ['1.1']
    >>> list(network.state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']

Masks come from modules only: a call of ``F.dropout`` inside a `forward` is not seen.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from dpbnn import _validate
from dpbnn._internals import AnyDropout, children_of
from dpbnn.device.generators import without_fast_path
from dpbnn.errors import DpbnnError
from dpbnn.models.networks import CNN, MLP

__all__ = ["dropout_layers", "evaluating", "masks_on", "with_dropout"]

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.GLU),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Tanhshrink),
    *(nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Threshold),
)
"""Modules without parameters: another module can take their place, and no weight changes its name."""


def dropout_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that draw masks in training mode, with their names."""
    return [(name, module) for name, module in model.named_modules() if _draws_masks(module)]


def _draws_masks(module: nn.Module) -> bool:
    if isinstance(module, AnyDropout):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; then every module's mode is as before."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def masks_on(model: nn.Module) -> Iterator[None]:
    """Inside, dropout layers draw masks and all other modules are in evaluation mode; then modes are as before."""
    with evaluating(model), without_fast_path():
        for _, module in dropout_layers(model):
            module.training = True
        yield


def with_dropout(model: nn.Module, rate: float) -> nn.Module:
    """A copy of the model with a dropout layer after every hidden activation.

    Activations are modules (ReLU, Tanh, GELU and the like), wherever they are registered. An activation at the very end
    of a `Sequential` belongs to the output and gets none. All weights keep their names and values, so the copy and the
    model can exchange weights.

    Args:
        model: any module without dropout layers; it is not changed.
        rate: the share of units that a mask sets to zero, above 0 and below 1.

    Raises:
        DpbnnError: there is no place for a layer, or the model has dropout already.
    """
    rate = _validate.fraction("rate", rate)
    if not isinstance(model, nn.Module):
        _validate.refuse("model", "a torch.nn.Module", model)
    present = dropout_layers(model)
    if present:
        raise DpbnnError(
            f"The model has dropout layers already, the first '{present[0][0]}': there is nothing to place; use it as "
            "it is, or set their rates."
        )
    changed = copy.deepcopy(model)
    if not _place(changed, rate):
        raise DpbnnError(
            f"{type(model).__name__} has no hidden activation among its modules (functions such as F.relu are not "
            f"seen): write self.dropout = nn.Dropout({rate:g}) into its __init__, and x = self.dropout(x) after each "
            "activation into its forward."
        )
    if isinstance(changed, (MLP, CNN)):
        changed.settings = {**changed.settings, "dropout": rate}
    return changed


def _place(model: nn.Module, rate: float) -> bool:
    """Put a dropout layer behind every hidden activation, in place; returns whether there was one."""
    output = _output_place(model)
    replacements: dict[nn.Module, nn.Module] = {}  # one for each activation, which may be registered twice
    for parent in list(model.modules()):
        if isinstance(parent, ParametrizationList):
            continue  # its modules compute weights, not units
        children = children_of(parent)
        for name, child in children.items():
            if isinstance(child, ACTIVATIONS) and not child.state_dict() and (parent, name) != output:
                if child not in replacements:
                    replacements[child] = nn.Sequential(child, nn.Dropout(rate)).train(child.training)
                children[name] = replacements[child]
    return bool(replacements)


def _output_place(model: nn.Module) -> tuple[nn.Module, str] | None:
    """The parent and name of the last module of a `Sequential`, through modules that only wrap another."""
    place = None
    while (children := children_of(model)) and (isinstance(model, nn.Sequential) or len(children) == 1):
        name, last = list(children.items())[-1]
        if last is None:
            break
        place, model = (model, name), last
    return place
