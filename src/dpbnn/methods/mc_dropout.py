"""DP-MC Dropout (Algorithm 4 of the paper): DP-SGD, or any optimizer, on a network whose dropout stays on.

    w <- w - eta (G / B + grad r(w) / n),      one mask for each record and step

At prediction masks are drawn again; how far their answers differ is the epistemic uncertainty.

    >>> import dpbnn
    >>> network = dpbnn.with_dropout(dpbnn.networks.MLP(3, [4], 2, activation="tanh"), rate=0.1)
    >>> method = dpbnn.MCDropout(learning_rate=2e-4, optimizer="Adam")

Reference: Gal and Ghahramani 2016 (arXiv 1506.02142).
"""

from dataclasses import dataclass, field
from typing import ClassVar

from dpbnn.methods.sgd import SGD, SGDState
from dpbnn.models.priors import Gaussian, Prior
from dpbnn.posterior import DropoutNetwork

__all__ = ["MCDropout"]


@dataclass(frozen=True)
class MCDropout(SGD):
    """`SGD` with the same arguments, on a network with dropout layers that stay on at prediction."""

    prior: Prior = field(default_factory=lambda: Gaussian(1.0))

    name: ClassVar[str] = "mc_dropout"
    has_dropout: ClassVar[bool] = True

    def to_posterior(self, state: SGDState) -> DropoutNetwork:
        """The last weights, for a network that goes on drawing masks."""
        return DropoutNetwork({name: values.clone() for name, values in state.weights.items()})
