"""The interface of a posterior: one verb, `draw`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar, Self

from torch import Tensor

from dpbnn.types import Weights

__all__ = ["Posterior"]


class Posterior(ABC):
    """A distribution over weights: a dataclass whose fields hold weights by name, or one tensor.

    A new form has a `kind`, `draw`, and an entry in `POSTERIORS`.
    """

    kind: ClassVar[str]
    """The name under which it is saved."""
    keeps_dropout: ClassVar[bool] = False
    """Whether the network's dropout layers draw masks at prediction too."""

    @abstractmethod
    def draw(self, num_draws: int, seed: int | None) -> Iterator[Weights]:
        """At most `num_draws` weights; fewer where the posterior holds fewer."""

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' names, the likelihood's weights among them."""
        return tuple(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def tensors(self) -> Weights:
        """All fields, to be saved: a tensor under its field's name, weights as ``field/name``."""
        saved: Weights = {}
        for field in fields(self):  # type: ignore[arg-type]
            part = getattr(self, field.name)
            if isinstance(part, Tensor):
                saved[field.name] = part
            else:
                saved |= {f"{field.name}/{name}": values for name, values in part.items()}
        return saved

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Self:
        """The posterior that gave these `tensors`."""
        parts: dict[str, Any] = {}
        for key, values in tensors.items():
            field, is_named, name = key.partition("/")
            if is_named:
                parts.setdefault(field, {})[name] = values
            else:
                parts[field] = values
        return cls(**parts)

    def report(self) -> dict[str, Any]:
        """Plain values for the release."""
        return {}

    def __repr__(self) -> str:
        size = sum(values.numel() for values in next(iter(self.draw(1, seed=0))).values())
        return f"{type(self).__name__}({', '.join([f'{size:,} weights', *self._details()])})"

    def _details(self) -> tuple[str, ...]:
        """Words for `repr` beside the number of weights; never their values."""
        return ()
