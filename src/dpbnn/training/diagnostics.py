"""Values without noise, to develop on data that is not private: they void the guarantee."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Diagnostics"]


@dataclass
class Diagnostics:
    """If enabled, the batch size, the sum of the gradient norms and the number of clipped records of each step."""

    enabled: bool
    entries: list[dict[str, float]] = field(default_factory=list)

    def observer(self, step: int) -> Callable[[Tensor, float], None] | None:
        """A function that `clip_and_sum` calls with the norms of a part of the batch and the clip norm."""
        if not self.enabled:
            return None
        entry: dict[str, float] = {"step": step, "records": 0, "norms": 0.0, "clipped": 0}
        self.entries.append(entry)

        def observe(norms: Tensor, clip_norm: float) -> None:
            entry["records"] += len(norms)
            entry["norms"] += float(norms.nan_to_num(0.0, 0.0, 0.0).sum())
            entry["clipped"] += int((norms > clip_norm).sum())

        return observe
