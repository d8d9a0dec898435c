"""What all jobs have in common that train a setting from a seed."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from dpbnn.experiments.item import Size, mark_of
from dpbnn.experiments.settings import Setting

__all__ = ["SeededRun"]


@dataclass(frozen=True)
class SeededRun:
    """A setting with a seed: the network's initial weights, and the method's own draws.

    Sampling and noise are fresh in every run.
    """

    setting: Setting
    seed: int
    size: Size
    on_host: ClassVar[bool] = False
    what: ClassVar[str] = ""
    """What is looked at, where runs of the same setting are looked at in several ways."""

    @property
    def key(self) -> str:
        """For example "mnist, CNN, DP-SGLD, 1f0a93, seed 0, by epoch"."""
        name = f"{self.setting.label}, {mark_of(self.settings)}, seed {self.seed}"
        return f"{name}, {self.what}" if self.what else name

    @property
    def settings(self) -> dict[str, Any]:
        """All that the outcome depends on."""
        return {"setting": self.setting.to_json(), "seed": self.seed} | self.measured

    @property
    def measured(self) -> dict[str, Any]:
        """How much is looked at."""
        return {"test_records": self.size.test_records, "draws": self.size.draws}

    @property
    def together(self) -> Hashable:
        """Runs of the same length on the same data."""
        return self.setting.data, self.setting.network, self.setting.steps
