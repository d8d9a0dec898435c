"""What a cell trains: its plan, its network, and its records with one person among them who can be left out."""

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import dpbnn
from dpbnn.methods import Method
from dpbnn.models.likelihoods import Likelihood
from tests.together.combinations import makers
from tests.together.combinations.covering import Cell
from tests.together.combinations.networks import NETWORKS, TOKENS, WIDTH, make_network
from tests.together.combinations.watch import Sampling

CLIP_NORMS, NOISES = (0.5, 0.8), (2.0, 3.0)
MANY_ROWS = 1000
"""Of the person, where rows have persons: far more than anybody may have."""
MARK = 77.0
"""In all of her numbers then, and nowhere else."""


@dataclass(frozen=True)
class Size:
    """Of a batch: the declared number of records, the expected batch, the records that there are beside the person's,
    the steps, and micro-batches of which several are needed."""

    declared: int
    batch: int
    others: int
    steps: int
    several: int = 7


SIZES = {
    "usual": Size(40, 12, 37, 4),
    "mostly empty": Size(40, 1, 5, 6),
    "one": Size(40, 1, 37, 6),
    "above 4096": Size(4200, 4180, 4197, 2, several=333),
}


@dataclass(frozen=True)
class Records:
    """Inputs and targets; the last `hers` rows are the person's."""

    x: Tensor
    y: Tensor
    hers: int = 0

    def without_her(self) -> "Records":
        """All others, in their order."""
        others = len(self.x) - self.hers
        return Records(self.x[:others], self.y[:others])


@dataclass(frozen=True)
class Subject:
    """Everything that a cell needs, made from its values and nothing else."""

    cell: Cell

    @property
    def seed(self) -> int:
        """Of everything that may differ from cell to cell."""
        return zlib.crc32(repr(sorted(self.cell.items())).encode())

    @property
    def size(self) -> Size:
        """Of its batches; estimators drop half of a chain, of which two samples at least must be left."""
        size = SIZES[self.cell["batch"]]
        return replace(size, steps=max(4, size.steps)) if self.is_table else size

    @property
    def rows(self) -> int:
        """How many one person may have."""
        return int(self.cell["rows"])

    @property
    def has_dropout(self) -> bool:
        """Whether the network draws masks."""
        return self.cell["dropout"] == "yes"

    @cached_property
    def plan(self) -> dpbnn.PrivacyPlan:
        """As `fit` is given it."""
        size, levels = self.size, self.cell["levels"]
        shape: dict[str, Any] = {"dataset_size": size.declared, "batch_size": size.batch, "steps": size.steps}
        if levels == "without privacy":
            return dpbnn.PrivacyPlan.without_privacy(**shape)
        half = size.steps // 2
        two = {"two noise levels": (1,), "two clip norms": (0,), "both": (0, 1)}.get(levels, ())
        clip, noise = (
            ((first, half), (second, size.steps - half)) if index in two else first
            for index, (first, second) in enumerate((CLIP_NORMS, NOISES))
        )
        further: dict[str, Any] = {"clipping": self.cell["clipping"], "max_records_per_person": self.rows}
        return dpbnn.PrivacyPlan(**shape, clip_norm=clip, noise_multiplier=noise, delta=1e-4, **further)

    @cached_property
    def method(self) -> Method[Any]:
        """Of its form, with its optimizer, prior, and what it keeps."""
        own = (self.cell[name] for name in ("method", "optimizer", "keep", "prior"))
        return makers.make_method(*own, plan=self.plan)

    @cached_property
    def likelihood(self) -> Likelihood:
        """Of its form."""
        return makers.make_likelihood(self.cell["likelihood"])

    def network(self) -> nn.Module:
        """A fresh one; always the same."""
        outputs = makers.targets_of(self.cell["likelihood"]).outputs
        return make_network(
            self.cell["network"], outputs, has_dropout=self.has_dropout, is_frozen=self.cell["frozen"] == "yes"
        )

    @property
    def engine(self) -> str:
        """That takes the gradients of its network."""
        return NETWORKS[self.cell["network"]].engines[self.cell["frozen"] == "yes"]

    @property
    def execution(self) -> dpbnn.Execution:
        """A checkpoint's state is written at every step by some cells, and by others at the first alone."""
        return dpbnn.Execution(
            micro_batch_size={"1": 1, "several": self.size.several, "one": 10_000}.get(self.cell["micro_batch"]),
            precision=None if self.cell["precision"] == "default" else self.cell["precision"],
            dataset_workers=int(self.cell["workers"]),
            checkpoint_seconds=(self.seed % 2) * 1e6,
        )

    @property
    def is_table(self) -> bool:
        """Whether rows have persons: the run is an estimator's or the command line's."""
        return self.cell["entry"] != "fit"

    @cached_property
    def sampling(self) -> Sampling:
        """The records of the others come first; of hers, the rows that may count follow."""
        return Sampling(length=self.size.others + self.rows, hers=self.size.others)

    @cached_property
    def records(self) -> Records:
        """Ordinary records, some that are zero, huge, no numbers or the same twice, and the person's."""
        chance = torch.Generator().manual_seed(self.seed)
        x, y = self._ordinary(min(self.size.others, 37), chance)
        if self.cell["numbers"] == "floats":
            x[1], x[2], x[3] = 0, 1e4 * x[2], -1e4 if self.is_table else torch.nan
        else:
            x[1], x[2] = 0, TOKENS - 1
            if self.is_table:  # where hers are cut off to the largest number everywhere
                x[2, 0] = 0
        x[4], y[4] = x[0], y[0]
        if not self.is_table:
            y[3] = makers.targets_of(self.cell["likelihood"]).strange(y[3])
        times = -(-self.size.others // len(x))
        others = x.repeat(times, 1)[: self.size.others], y.repeat(times, *[1] * (y.dim() - 1))[: self.size.others]
        hers = self._marked(x, y) if self.is_table else self._hers(chance)
        return Records(torch.cat([others[0], hers[0]]), torch.cat([others[1], hers[1]]), len(hers[0]))

    @staticmethod
    def _marked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that are recognised wherever they turn up."""
        label = MARK if y.is_floating_point() else 2
        return x.new_full((MANY_ROWS, WIDTH), MARK), y.new_full((MANY_ROWS, *y.shape[1:]), label)

    def _ordinary(self, count: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        targets = makers.targets_of(self.cell["likelihood"])
        if self.cell["numbers"] == "floats":
            x = torch.randn(count, WIDTH, generator=chance)
        else:
            x = torch.randint(0, TOKENS, (count, WIDTH), generator=chance)
        return x, targets.made(count, chance)

    def _hers(self, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        """All rows the same and huge, so that they move the sum as far as they can; or each of another kind."""
        x, y = self._ordinary(1, chance)
        x, y = x.repeat(self.rows, 1), y.repeat(self.rows, *[1] * (y.dim() - 1))
        if self.cell["numbers"] == "floats":
            first = torch.inf if self.rows == 1 else 1e4
            kinds = (1e4, 1e4, 1e4) if self.seed % 3 else (first, torch.nan, 0.0)
            x = x * torch.tensor(kinds[: self.rows])[:, None]
        elif self.seed % 3 == 0:
            y[-1] = makers.targets_of(self.cell["likelihood"]).strange(y[-1])
        return x, y

    @cached_property
    def others(self) -> Records:
        """Altogether different records, and few of them."""
        chance = torch.Generator().manual_seed(self.seed + 1)
        x, y = self._ordinary(3, chance)
        return Records(3 - x if self.cell["numbers"] == "floats" else x, y)

    @cached_property
    def public(self) -> tuple[Tensor, Tensor] | None:
        """Records that are declared public."""
        if self.cell["public_data"] == "no":
            return None
        return self._ordinary(4, torch.Generator().manual_seed(5))
