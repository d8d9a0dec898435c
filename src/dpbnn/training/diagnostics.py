"""Values without noise, for whoever develops on data that is not private: they void the guarantee."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Diagnostics"]


@dataclass
class Diagnostics:
    """Nothing, unless it is wanted; then batch size, mean gradient norm and share of clipped records of each step."""

    wanted: bool
    entries: list[dict[str, float]] = field(default_factory=list)

    def observer(self, step: int) -> Callable[[Tensor, float], None] | None:
        """What the clipping engine calls with the norms of a part of the batch and the clip norm."""
        if not self.wanted:
            return None
        self.entries.append({"step": step, "records": 0, "norms": 0.0, "clipped": 0})
        entry = self.entries[-1]

        def observe(norms: Tensor, clip_norm: float) -> None:
            entry["records"] += len(norms)
            entry["norms"] += float(norms.nan_to_num(0.0, 0.0, 0.0).sum())
            entry["clipped"] += int((norms > clip_norm).sum())

        return observe
