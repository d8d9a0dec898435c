"""What every method does: four verbs that each has, and three further ones for those that need them.

    before any data    prepare(plan), init(weights, plan, seed)
    in every step      begin_step(state, step), weights(state, step), update(state, noisy, step), end_step(state, step)
    between two steps  to_posterior(state)

A method learns about the data through `NoisySum` alone: no verb takes a batch or the network, so a new method cannot
break the guarantee by mistake. `prepare` is called before any data is touched. It may raise the plan's noise and change
nothing else, which `fit` checks.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from dpbnn.posterior import Posterior
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.types import Draws, NoisySum, Weights

__all__ = ["Method", "Prepared"]

State = TypeVar("State")
PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Prepared:
    """What a method makes of a plan.

    Args:
        plan: what the run follows and is charged for: the given plan, or one with more noise.
        settings: plain values for the release: how the method is set up, and what that means under the plan.
        remarks: warnings about these settings under this plan, given before anything is spent.
        folder: a folder that this run alone may use, such as one for samples; it is locked while the run lasts.
    """

    plan: PrivacyPlan
    settings: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    folder: Path | None = None


class Method(ABC, Generic[State]):
    """How released gradients become a posterior.

    A state is a dataclass. A checkpoint holds its fields that are plain values, tensors, tensors by name, optimizers,
    or other objects with `state_dict` and `load_state_dict`; `init` makes the rest again.
    """

    has_dropout: ClassVar[bool] = False
    """Whether the network must have dropout layers; they then draw masks in training, whatever their mode was."""

    def prepare(self, plan: PrivacyPlan) -> Prepared:
        """Settle everything that follows from the settings and the plan; raise if they contradict each other."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        values = {name: getattr(self, name) for name in names}
        plain = {name: value if isinstance(value, PLAIN) else repr(value) for name, value in values.items()}
        return Prepared(plan, {"method": type(self).__name__, **plain})

    @abstractmethod
    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> State:
        """The state before the first step, under the plan that `prepare` gave. `seed` is the user's, or a random one.

        May be called several times for one run, the first time before anything is spent.
        """

    def begin_step(self, state: State, step: int) -> Hashable | None:
        """Work on the host before `weights` that no CUDA graph holds, such as draws from the user's seed.

        Returns the step's phase: steps of equal phase launch the same kernels on the same tensors, so that one CUDA
        graph serves all of them. None, the default, says that this step cannot be captured. May be called twice.
        """
        return None

    @abstractmethod
    def weights(self, state: State, step: int) -> Weights | Draws:
        """Where this step's gradients are taken: a function of the state's tensors alone.

        It may be called several times in a step, once for each part of a batch. Each call can be captured in a CUDA
        graph of its own, which replays kernels and not Python: no call may rely on Python that another call has run.
        """

    @abstractmethod
    def update(self, state: State, noisy: NoisySum, step: int) -> State:
        """The state after this step's release; may use tensors that this step's `weights` has written."""

    def end_step(self, state: State, step: int) -> None:
        """Work on the host after `update` that no CUDA graph holds, such as keeping samples."""
        return

    @abstractmethod
    def to_posterior(self, state: State) -> Posterior:
        """What the run has learned so far."""
