"""The loss of each record as a function of all trained weights: a model and a likelihood seen as one.

The model runs through `torch.func.functional_call` on the weights it is given, and on copies of its buffers: for a
while it holds other tensors than its own. It is therefore a replica (`dpbnn.models.replica`), which one thread has for
itself.
"""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpbnn._internals import writes_to
from dpbnn.clipping.engines.layout import ModelLayout
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Likelihood
from dpbnn.types import Weights

__all__ = ["Objective", "wide"]


class Objective:
    """``l_i(w)`` for a model and a likelihood.

    `names` are the model's trained weights, each once, as in ``model.named_parameters()``;
    `likelihood_names` are the likelihood's. Only the book-keeping engine uses `layout`.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        likelihood_names: tuple[str, ...] = (),
        layout: ModelLayout | None = None,
    ) -> None:
        self.model = model
        self.likelihood = likelihood
        self.likelihood_names = likelihood_names
        self.layout = layout or ModelLayout()
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names = tuple(self.parameters)
        self._buffers = {
            _slot(name, attribute): buffer
            for name, module in model.named_modules()
            for attribute, buffer in module.named_buffers(recurse=False)
        }
        self._name_of = {id(parameter): name for name, parameter in self.parameters.items()}

    def with_layout(self, layout: ModelLayout) -> "Objective":
        """The same objective with another layout."""
        return Objective(self.model, self.likelihood, self.likelihood_names, layout)

    @cached_property
    def writes_in_place(self) -> bool:
        """Whether some module says that it overwrites its input."""
        return any(getattr(module, "inplace", False) for module in self.model.modules())

    def model_weights(self) -> Weights:
        """The model's own trained weights, as they are now."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def cast(self, weights: Mapping[str, Tensor]) -> Weights:
        """Weights that are kept in float32 or wider, in the types and on the device that the model computes in."""
        return {
            name: values.to(self.parameters[name]) if name in self.parameters else values
            for name, values in weights.items()
        }

    @cached_property
    def owners(self) -> dict[str, tuple[nn.Module, dict[str, str]]]:
        """The modules that own trained parameters, by name: attribute name to weight name (tied ones share one)."""
        owners = {}
        for name, module in self.model.named_modules():
            parameters = module.named_parameters(recurse=False)
            trained = {attribute: self._name_of[id(p)] for attribute, p in parameters if id(p) in self._name_of}
            if trained:
                owners[name] = (module, trained)
        return owners

    def outputs(self, weights: Mapping[str, Tensor], x: Tensor, *, copy: bool = True) -> Tensor:
        """``f(x; w)`` with the records first; the model gets a copy of `x`, which it may write to, or `x` itself."""
        outputs = self._call(self._state(weights), x.clone() if copy else x)
        if not isinstance(outputs, Tensor):
            raise DpbnnError(
                f"The model must return one tensor, got {type(outputs).__name__}; wrap it so that it returns "
                "its output alone."
            )
        return outputs

    def changed_buffers(self, weights: Mapping[str, Tensor], x: Tensor) -> list[str]:
        """The buffers that a run on `x` writes to or replaces."""
        state = self._state(weights)
        copies = {slot: state[slot] for slot in self._buffers}
        self._call(state, x)  # leaves in `state` what the model left in itself
        return [slot for slot, copy in copies.items() if state[slot] is not copy or writes_to(copy) > 0]

    def _call(self, state: dict[str, Tensor], x: Tensor) -> Tensor:
        # Every slot is named here: tied by torch, a module registered twice would be left with the stand-ins.
        return functional_call(self.model, state, (x,), tie_weights=False)

    def _state(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the buffers, and the weights, in every slot that holds them."""
        copies = {id(buffer): buffer.clone() for buffer in self._buffers.values()}
        buffers = {slot: copies[id(buffer)] for slot, buffer in self._buffers.items()}
        return buffers | {slot: weights[name] for slot, name in self._slots.items()}

    @cached_property
    def _slots(self) -> dict[str, str]:
        """Where each trained weight goes: every attribute of every module that holds it, each module once."""
        return {
            _slot(module, attribute): name
            for module, (_, names) in self.owners.items()
            for attribute, name in names.items()
        }

    def losses(self, outputs: Tensor, y: Tensor, likelihood_weights: Mapping[str, Tensor]) -> Tensor:
        """``l_i`` for each record."""
        weights = {name: likelihood_weights[name] for name in self.likelihood_names}
        losses = self.likelihood.negative_log_likelihood(outputs, y, weights)
        if losses.shape != y.shape[:1]:
            raise DpbnnError(
                f"{type(self.likelihood).__name__}.negative_log_likelihood must return one number per record, "
                f"got another shape, with {losses.dim()} dimensions; return a tensor of shape [records]."
            )
        return losses

    def loss_of_one(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """``l_i`` of a single record without the leading dimension."""
        outputs = self.outputs(weights, x.unsqueeze(0))
        return self.losses(outputs, y.unsqueeze(0), weights).sum()


def _slot(module: str, attribute: str) -> str:
    return f"{module}.{attribute}" if module else attribute


def wide(values: Tensor) -> Tensor:
    """float32 or wider: what clipping, summing and noise are done in, whatever the model computes in."""
    is_wide = values.dtype in (torch.float32, torch.float64) or not values.is_floating_point()
    return values if is_wide else values.float()
