"""What every method does: four verbs that each has, and further ones for those that need them.

    init(weights, plan, seed)  ->  weights(state, step)  ->  update(state, noisy, step)  ->  to_posterior(state)

A method learns about the data through `NoisySum` alone: no verb takes a batch, so a new method cannot break the
guarantee by mistake. `fit` calls two verbs before it touches any data, and checks what they return: `plan_for` may
raise the plan's noise and change nothing else; the network that `model_for` returns runs on private records and is
trusted as the user's own model is.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from torch import nn

from dpbnn.posterior import Posterior
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.types import Draws, NoisySum, Weights

__all__ = ["Method"]

State = TypeVar("State")


class Method(ABC, Generic[State]):
    """How released gradients become a posterior.

    A state is a dataclass. A checkpoint holds its fields that are plain values, tensors, tensors by name, optimizers,
    or other objects with `state_dict` and `load_state_dict`; `init` makes the rest again.
    """

    @abstractmethod
    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> State:
        """The state before the first step. `seed` is the user's, or a random one."""

    @abstractmethod
    def weights(self, state: State, step: int) -> Weights | Draws:
        """Where this step's gradients are taken: a function of the state's tensors alone.

        It may be called several times in a step, once for each part of a batch. Each call can be captured in a CUDA
        graph of its own, which replays kernels and not Python: no call may rely on Python that another call has run.
        """

    @abstractmethod
    def update(self, state: State, noisy: NoisySum, step: int) -> State:
        """The state after this step's release; may use tensors that this step's `weights` has written."""

    @abstractmethod
    def to_posterior(self, state: State) -> Posterior:
        """What the run has learned so far."""

    def plan_for(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan that a run follows and is charged for; raises if the settings contradict the given one."""
        return plan

    def model_for(self, model: nn.Module) -> nn.Module:
        """The network to train, with the same weights; raises if the method cannot use it."""
        return model

    def reserved(self, is_resumed: bool) -> AbstractContextManager[None]:
        """Reserve what only one run may use, such as a folder of samples; refuse before anything is spent."""
        return nullcontext()

    def begin_step(self, state: State, step: int) -> Hashable | None:
        """Work on the host before `weights` that no CUDA graph holds, such as draws from the user's seed.

        Returns the step's phase: steps of equal phase launch the same kernels on the same tensors, so that one CUDA
        graph serves all of them. None, the default, says that this step cannot be captured. May be called twice.
        """
        return None

    def end_step(self, state: State, step: int) -> None:
        """Work on the host after `update` that no CUDA graph holds, such as counting samples."""
        return

    def report(self, plan: PrivacyPlan) -> dict[str, Any]:
        """Plain values for the release: how the method was set up, and what that means under the plan."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        settings = {name: getattr(self, name) for name in names}
        plain = {name: value if _is_plain(value) else repr(value) for name, value in settings.items()}
        return {"method": type(self).__name__, **plain}

    def remarks(self, plan: PrivacyPlan) -> list[str]:
        """Warnings about these settings under this plan, given before anything is spent."""
        return []


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
