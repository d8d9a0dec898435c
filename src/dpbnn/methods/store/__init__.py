"""What a sampler keeps of its chain: the iterates themselves, or a summary of them."""

from collections.abc import Mapping
from typing import Any, Protocol

from dpbnn.methods.store.keep_samples import KeepSamples
from dpbnn.methods.store.keep_summary import KeepSummary
from dpbnn.methods.store.sample_folders import reserved
from dpbnn.posterior import Posterior
from dpbnn.types import Weights

__all__ = ["KeepSamples", "KeepSummary", "Keeping", "Store", "reserved"]


class Store(Protocol):
    """What has been kept so far."""

    def is_kept(self, step: int) -> bool:
        """Whether the iterate after this step is one of those to be kept."""
        ...

    def expect(self, step: int) -> None:
        """A step begins: make ready for its iterate, if it is to be kept."""
        ...

    def write(self, step: int, weights: Weights) -> None:
        """Copy the iterate, if it is to be kept and can be copied by the device alone; may be recorded."""
        ...

    def enter(self, step: int, weights: Weights, importance: float) -> None:
        """The step is done: count its iterate, if it is to be kept."""
        ...

    def posterior(self, current: Weights) -> Posterior:
        """What is kept; before there is anything, the current weights."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        ...


Keeping = KeepSamples | KeepSummary
