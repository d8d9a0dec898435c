"""The verbs that every method has, in the order in which a run uses them.

A method learns about the data through `NoisySum` alone: no verb takes a batch, so that a new method cannot spoil
the guarantee.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from dpbnn.posterior import Posterior
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.types import NoisySum, Weights

__all__ = ["Method"]

State = TypeVar("State")


class Method(Protocol[State]):
    """How released gradients become a posterior."""

    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> State:
        """The state before the first step; raises if the settings contradict the plan. `seed` is the user's."""
        ...

    def weights(self, state: State, step: int) -> Weights:
        """Where this step's gradients are taken."""
        ...

    def update(self, state: State, noisy: NoisySum, step: int) -> State:
        """The state after this step's release."""
        ...

    def to_posterior(self, state: State) -> Posterior:
        """What the run has learned."""
        ...

    def state_to_save(self, state: State) -> dict[str, Any]:
        """Tensors and plain values from which `restored` continues exactly."""
        ...

    def restored(self, state: State, saved: Mapping[str, Any]) -> State:
        """A freshly initialised state brought to where it was saved."""
        ...

    def settings(self) -> dict[str, Any]:
        """Plain values that say how the method was set up, for the release."""
        ...
