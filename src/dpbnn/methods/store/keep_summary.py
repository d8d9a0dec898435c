"""Sum a chain up as it goes, in memory that does not grow with it.

Mean and variance of every weight are exact (Welford's recursion, a block of iterates at a time). Beside them the
strongest directions of the scatter matrix are kept: those so far and a new block are stacked, and of the stack's
principal directions the first `rank` stay (Ross et al. 2008). A truncated sum of squares never exceeds the whole, so
that the variance less what the directions hold is a variance again: the diagonal of a `LowRankGaussian`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn.methods.store.window import Window, check_window
from dpbnn.posterior import LowRankGaussian, WeightSamples
from dpbnn.posterior.effective_sample_size import traced_positions
from dpbnn.types import Weights

__all__ = ["KeepSummary", "SummaryStore"]


@dataclass(frozen=True)
class KeepSummary:
    """How to sum up; takes room for about ``1.25 rank + 2`` copies of the weights, however long the chain.

    Args:
        rank: directions to keep.
        burn_in: steps to drop; half of them by default.
        thin: take every so many of the rest; by default at most a thousand are taken.
    """

    rank: int = 20
    burn_in: int | None = None
    thin: int | None = None

    def __post_init__(self) -> None:
        _validate.whole_number("rank", self.rank)
        check_window(self.burn_in, self.thin)

    @property
    def folder(self) -> None:
        """A summary is in memory: it needs no folder."""

    def open(self, weights: Weights, steps: int) -> "SummaryStore":
        """An empty summary of such weights."""
        at_most = 1000 if self.thin is None else steps
        return SummaryStore(Window.over(steps, self.burn_in, self.thin, at_most), weights, self.rank)


class SummaryStore:
    """Sums over `folded` iterates, and a block of `waiting` ones."""

    def __init__(self, window: Window, weights: Weights, rank: int) -> None:
        self.window, self.rank, self.block = window, rank, max(1, rank // 4)
        self.mean = {name: torch.zeros_like(values) for name, values in weights.items()}
        self.squares = {name: torch.zeros_like(values) for name, values in weights.items()}
        self.directions = {name: values.new_zeros(0, values.numel()) for name, values in weights.items()}
        self.waiting = {name: values.new_zeros(self.block, values.numel()) for name, values in weights.items()}
        self.positions = traced_positions({name: values.shape for name, values in weights.items()})
        self.trace: list[Tensor] = []
        self.importance: list[float] = []
        self.folded = 0

    @property
    def num_waiting(self) -> int:
        """How many iterates are not in the sums yet."""
        return len(self.trace) - self.folded

    def keep(self, step: int, weights: Weights, importance: float) -> None:
        """Take the iterate after this step into the summary, if the window holds the step."""
        if not self.window.holds(step):
            return
        for name, values in weights.items():
            self.waiting[name][self.num_waiting].copy_(values.flatten())
        traced = [values.flatten()[self.positions[name].to(values.device)] for name, values in weights.items()]
        self.trace.append(torch.cat([values.double().cpu() for values in traced]))
        self.importance.append(importance)
        if self.num_waiting == self.block:
            self._fold()

    def _fold(self) -> None:
        """``S = S + sum_b a_b (w_b - m)(w_b - m)' + (A a / (A + a)) (mean - m)(mean - m)'``.

        A is the importance of what is folded, a_b those of the block and a their sum, m the block's weighted mean.
        """
        new = torch.tensor(self.importance[self.folded :], dtype=torch.float64)
        before, added = sum(self.importance[: self.folded]), float(new.sum())
        pull = (before * added / (before + added)) ** 0.5
        stacked = {}
        for name, mean in self.mean.items():
            block = self.waiting[name][: len(new)]
            share = new.to(block)
            middle = (share / added) @ block
            apart = (mean.flatten() - middle) * pull
            deviations = (block - middle) * share.sqrt()[:, None]
            self.squares[name].view(-1).add_(deviations.square().sum(dim=0)).add_(apart.square())
            mean.view(-1).lerp_(middle, added / (before + added))
            stacked[name] = torch.cat([self.directions[name], deviations, apart[None]])
        gram = torch.stack([(rows @ rows.mT).double() for rows in stacked.values()]).sum(dim=0)
        strongest = _eigenvectors(gram)[:, -self.rank :].mT
        self.directions = {name: strongest.to(rows.dtype) @ rows for name, rows in stacked.items()}
        self.folded += len(new)

    def posterior(self, current: Weights) -> LowRankGaussian | WeightSamples:
        """The summary so far; before there are two iterates, the current weights."""
        if len(self.trace) < 2:
            return WeightSamples({name: values[None].clone() for name, values in current.items()}, torch.ones(1))
        if self.num_waiting:
            self._fold()
        scale = sum(self.importance) * (self.folded - 1) / self.folded
        directions = {
            name: (rows / scale**0.5).reshape(-1, *self.mean[name].shape) for name, rows in self.directions.items()
        }
        diagonal = {
            name: (squares / scale - directions[name].square().sum(dim=0)).clamp_min(0.0)
            for name, squares in self.squares.items()
        }
        mean = {name: values.clone() for name, values in self.mean.items()}
        return LowRankGaussian(mean, diagonal, directions, torch.stack(self.trace))

    def state_dict(self) -> dict[str, Any]:
        """Everything."""
        names = ("mean", "squares", "directions", "waiting", "trace", "importance", "folded")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Everything, as saved."""
        for name, values in saved.items():
            if isinstance(values, dict):
                getattr(self, name).update({key: v.to(self.mean[key].device) for key, v in values.items()})
            else:
                setattr(self, name, values)


def _eigenvectors(gram: Tensor) -> Tensor:
    """Those of a chain that has diverged are no numbers either: the run goes on, and its release says what happened."""
    return torch.linalg.eigh(gram).eigenvectors if bool(gram.isfinite().all()) else torch.full_like(gram, torch.nan)
