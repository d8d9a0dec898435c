"""The verbs of every method, in the order in which a run uses them.

A method learns about the data through `NoisySum` alone: no verb takes a batch, so that a new one does not spoil the
guarantee by mistake. `plan_for` may raise the plan's noise and change nothing else, which `fit` checks. What
`model_for` returns is run on private records: it is trusted as the user's own model is.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from torch import nn

from dpbnn.posterior import Posterior
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.types import Draws, NoisySum, Weights

__all__ = ["Method"]

State = TypeVar("State")


class Method(ABC, Generic[State]):
    """How released gradients become a posterior."""

    def plan_for(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan that a run follows and is charged for; raises if the settings contradict the given one."""
        return plan

    def remarks(self, plan: PrivacyPlan) -> list[str]:
        """What whoever trains under this plan should know before trusting the result."""
        return []

    def model_for(self, model: nn.Module) -> nn.Module:
        """The network to train, which has the same weights; raises if the method cannot use it."""
        return model

    def reserved(self, is_resumed: bool) -> AbstractContextManager[None]:
        """Keep other runs, while one lives, from what it alone may use, such as a folder of its own.

        Refuses before anything is spent. A resumed run comes back to what it has made.
        """
        return nullcontext()

    @abstractmethod
    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> State:
        """The state before the first step. `seed` is the user's."""

    def phase(self, state: State, step: int) -> Hashable | None:
        """What tells this step from others: where it is equal, steps do the same work on the same tensors.

        Such steps can be recorded once on a device and replayed, with `begin_step` and `end_step` called each time.
        None, unless a method says otherwise: its steps are taken one by one.
        """
        return None

    def begin_step(self, state: State, step: int) -> None:
        """What a step needs before `weights` and is never recorded, such as draws from the user's seed."""
        return

    @abstractmethod
    def weights(self, state: State, step: int) -> Weights | Draws:
        """Where this step's gradients are taken: a function of the state's tensors alone.

        It may be called several times in a step, once for each part of a batch. On a device each call can be captured
        in a CUDA graph of its own, which replays kernels and not Python: no call may rely on Python that another one
        has run.
        """

    @abstractmethod
    def update(self, state: State, noisy: NoisySum, step: int) -> State:
        """The state after this step's release; may use what this step's `weights` has written into tensors."""

    def keep(self, state: State, step: int) -> State:
        """Take into the posterior what this step has led to, if it belongs there."""
        return state

    def end_step(self, state: State, step: int) -> None:
        """What is left to do after `keep` and is never recorded, such as counting."""
        return

    @abstractmethod
    def to_posterior(self, state: State) -> Posterior:
        """What the run has learned so far."""

    @abstractmethod
    def state_to_save(self, state: State) -> dict[str, Any]:
        """Tensors and plain values from which `restored` continues exactly."""

    @abstractmethod
    def restored(self, state: State, saved: Mapping[str, Any]) -> State:
        """A freshly initialised state brought to where it was saved."""

    @abstractmethod
    def report(self, plan: PrivacyPlan) -> dict[str, Any]:
        """Plain values that say how the method was set up, and what that means under the plan; for the release."""
