"""The methods by name, and what others must know of one before they load it.

>>> sorted(METHODS)
['bbp', 'mc_dropout', 'sgd', 'sgld']
>>> METHODS["sgld"].load().__name__
'SGLD'

A method is one file and one line here. `fit` takes the method itself; what is chosen by name looks it up here:
estimators, tables, the audit and the command line. Nothing heavy is imported until a method is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpbnn.methods.method import Method

__all__ = ["METHODS", "MethodEntry"]


@dataclass(frozen=True)
class MethodEntry:
    """A class, made by ``(learning_rate, prior=...)``, and what sets it apart.

    Args:
        path: ``"module:Class"``.
        is_sampler: whether iterates are samples of a chain, at a constant learning rate of the whole posterior (that of
            descent divided by n), and the plan's noise is the sampler's own.
        has_dropout: whether the network must have dropout layers.
    """

    path: str
    is_sampler: bool = False
    has_dropout: bool = False

    def load(self) -> "Callable[..., Method[Any]]":
        """The class itself."""
        module, name = self.path.split(":")
        made: Callable[..., Method[Any]] = getattr(import_module(module), name)
        return made

    def make(self, learning_rate: Any, dataset_size: int, **settings: Any) -> "Method[Any]":
        """The method at a learning rate in units of descent on the mean gradient."""
        rate = learning_rate / dataset_size if self.is_sampler else learning_rate
        return self.load()(rate, **settings)


METHODS: dict[str, MethodEntry] = {
    "sgld": MethodEntry("dpbnn.methods.sgld:SGLD", is_sampler=True),
    "bbp": MethodEntry("dpbnn.methods.bbp:BBP"),
    "mc_dropout": MethodEntry("dpbnn.methods.mc_dropout:MCDropout", has_dropout=True),
    "sgd": MethodEntry("dpbnn.methods.sgd:SGD"),
}
"""By name, the estimators' default first."""
