"""DP-MC Dropout (Algorithm 4 of the paper): DP-SGD, or any optimizer, on a network whose dropout stays on.

    w <- w - eta (G / B + grad r(w) / n),      one mask for each record and step

At prediction masks are drawn again; how far their answers differ is the epistemic uncertainty.

    >>> import dpbnn
    >>> dpbnn.MCDropout(learning_rate=2e-4, optimizer="Adam").report(
    ...     dpbnn.PrivacyPlan.without_privacy(dataset_size=100, batch_size=10, steps=5))["method"]
    'mc_dropout'

Reference: Gal and Ghahramani 2016 (arXiv 1506.02142).
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dpbnn.errors import DpbnnError
from dpbnn.methods.sgd import SGD, SGDState
from dpbnn.models.dropout import dropout_layers
from dpbnn.models.priors import Gaussian, Prior
from dpbnn.posterior import DropoutNetwork
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["MCDropout"]


@dataclass(frozen=True)
class MCDropout(SGD):
    """`SGD` with the same arguments, on a network with dropout layers that stay on at prediction."""

    prior: Prior = field(default_factory=lambda: Gaussian(1.0))

    def model_for(self, model: nn.Module) -> nn.Module:
        """The model, its dropout layers in training mode (a copy of it, if they are not)."""
        layers = dropout_layers(model)
        if not layers:
            raise DpbnnError(
                "MCDropout needs a model with dropout layers, got none in "
                f"{type(model).__name__}; dpbnn.with_dropout(model, rate=0.1) places one after every activation."
            )
        if all(layer.training for _, layer in layers):
            return model
        working = copy.deepcopy(model)
        for _, layer in dropout_layers(working):
            layer.training = True
        return working

    def to_posterior(self, state: SGDState) -> DropoutNetwork:
        """The last weights, for a network that goes on drawing masks."""
        return DropoutNetwork({name: values.clone() for name, values in state.weights.items()})

    def report(self, plan: PrivacyPlan) -> dict[str, Any]:
        """The settings."""
        return {"method": "mc_dropout", "prior": repr(self.prior), **self._descent.settings()}
