"""What a sampler keeps of its chain: the iterates themselves, or a summary of them."""

from collections.abc import Mapping
from typing import Any, Protocol

from dpbnn.methods.keeping.keep_samples import KeepSamples
from dpbnn.methods.keeping.keep_summary import KeepSummary
from dpbnn.posterior import Posterior
from dpbnn.types import Weights

__all__ = ["KeepSamples", "KeepSummary", "Keeping", "Store"]


class Store(Protocol):
    """What has been kept so far."""

    def offer(self, step: int, weights: Weights, importance: float) -> None:
        """Keep the iterate after this step, if it is one of those to be kept."""
        ...

    def posterior(self, current: Weights) -> Posterior:
        """What is kept; before there is anything, the current weights."""
        ...

    def to_save(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def restore(self, saved: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        ...


Keeping = KeepSamples | KeepSummary
