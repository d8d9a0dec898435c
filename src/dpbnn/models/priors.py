"""Priors: assumptions about the weights before any data, by their energy ``r(w) = -log p(w)``.

    >>> import torch, dpbnn
    >>> dpbnn.Gaussian(0.1).energy_gradient({"w": torch.tensor([0.02])})
    {'w': tensor([2.])}

A prior takes no data, so that its gradient is added outside the clip and costs no privacy. It acts on the network's
weights; a likelihood's own weights have a flat prior.

Your prior is a subclass of `Prior` with `energy`. Its gradient comes from autograd, unless you write `energy_gradient`
too, which is called at every step. Make it a frozen dataclass: checkpoints and releases know it by its ``repr``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.types import Weights

__all__ = ["PRIORS", "Flat", "Gaussian", "Grouped", "Laplace", "Prior", "ScaleMixture", "checked_prior"]

HALF_LOG_TWO_PI = math.log(2 * math.pi) / 2
NAMES_SHOWN = 8


class Prior(ABC):
    """The interface: an energy at given weights, and its gradient."""

    @abstractmethod
    def energy(self, weights: Weights) -> Tensor:
        """``r(w) = -log p(w)`` summed over all weights, constants included: one number that autograd can follow."""

    def energy_gradient(self, weights: Weights) -> Weights:
        """``grad r(w)`` for each weight, without a graph: by autograd, unless a subclass has a formula."""
        leaves = {name: values.detach().requires_grad_() for name, values in weights.items()}
        with torch.enable_grad():
            gradients = torch.autograd.grad(self.energy(leaves), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))

    def check(self, names: Collection[str]) -> None:  # noqa: B027 - nothing to refuse by default
        """Before training, refuse a network by the names of its weights."""

    def for_weight(self, name: str) -> "Prior":
        """The prior of one weight by its name."""
        return self


@dataclass(frozen=True)
class Gaussian(Prior):
    """Independent ``N(0, scale^2)``: ``grad r(w) = w / scale^2``, which is weight decay."""

    scale: float

    def __post_init__(self) -> None:
        _validate.positive("scale", self.scale)

    def energy(self, weights: Weights) -> Tensor:
        """``w^2 / (2 scale^2) + log scale + log(2 pi)/2``"""
        constant = math.log(self.scale) + HALF_LOG_TWO_PI
        return _total(w.square().sum() / (2 * self.scale**2) + w.numel() * constant for w in weights.values())

    def energy_gradient(self, weights: Weights) -> Weights:
        """``w / scale^2``"""
        return {name: values.detach() / self.scale**2 for name, values in weights.items()}


@dataclass(frozen=True)
class Laplace(Prior):
    """Independent, with density ``exp(-|w| / scale) / (2 scale)``: most weights near zero, some far out."""

    scale: float

    def __post_init__(self) -> None:
        _validate.positive("scale", self.scale)

    def energy(self, weights: Weights) -> Tensor:
        """``|w| / scale + log(2 scale)``"""
        constant = math.log(2 * self.scale)
        return _total(w.abs().sum() / self.scale + w.numel() * constant for w in weights.values())

    def energy_gradient(self, weights: Weights) -> Weights:
        """``sign(w) / scale``"""
        return {name: values.detach().sign().div_(self.scale) for name, values in weights.items()}


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """Each weight has the density ``weight * N(0, wide^2) + (1 - weight) * N(0, narrow^2)``.

    Weights near zero are held there; the few that the data needs move freely. With

        z = log((1 - weight) wide / (weight narrow)) - d w^2 / 2,    d = 1 / narrow^2 - 1 / wide^2

    a weight belongs to the narrow part with probability ``sigmoid(z)``; written in z, nothing overflows.

    Args:
        weight: how much of the mixture is wide.
        wide: the larger standard deviation.
        narrow: the smaller one; its pull of up to ``1 / narrow^2`` limits the learning rate.

    Reference: Blundell et al. 2015 (arXiv 1505.05424).
    """

    weight: float = 0.5
    wide: float = 1.0
    narrow: float = 0.1

    def __post_init__(self) -> None:
        _validate.fraction("weight", self.weight)
        _validate.positive("wide", self.wide)
        if _validate.positive("narrow", self.narrow) >= self.wide:
            _validate.refuse("narrow", f"< wide, which is {self.wide} (for one scale use Gaussian)", self.narrow)

    def energy(self, weights: Weights) -> Tensor:
        """``w^2 / (2 wide^2) - log weight + log wide + log(2 pi)/2 + log sigmoid(-z)``"""
        constant = math.log(self.wide) - math.log(self.weight) + HALF_LOG_TWO_PI
        return _total(
            w.square().sum() / (2 * self.wide**2) + F.logsigmoid(-self._logit(w)).sum() + w.numel() * constant
            for w in weights.values()
        )

    def energy_gradient(self, weights: Weights) -> Weights:
        """``w / wide^2 + d w sigmoid(z)``"""
        gradients = {}
        for name, attached in weights.items():
            values = attached.detach()
            narrow_part = self._logit(values).sigmoid_().mul_(values)
            gradients[name] = narrow_part.mul_(self._excess).add_(values, alpha=1 / self.wide**2)
        return gradients

    @property
    def _excess(self) -> float:
        return 1 / self.narrow**2 - 1 / self.wide**2

    def _logit(self, values: Tensor) -> Tensor:
        at_zero = math.log(1 - self.weight) - math.log(self.weight) + math.log(self.wide) - math.log(self.narrow)
        return torch.addcmul(values.new_full((), at_zero), values, values, value=-self._excess / 2)


@dataclass(frozen=True)
class Flat(Prior):
    """No preference: ``grad r(w) = 0``. It is no density (its integral is infinite); its energy is 0 by convention."""

    def energy(self, weights: Weights) -> Tensor:
        """Zero by convention: a divergence from this prior means nothing by itself."""
        return _total(values.new_zeros(()) for values in weights.values())

    def energy_gradient(self, weights: Weights) -> Weights:
        """Zeros."""
        return {name: torch.zeros_like(values) for name, values in weights.items()}


@dataclass(frozen=True)
class Grouped(Prior):
    """Different priors for different weights, by patterns of their names; the first pattern that matches decides.

        >>> Grouped(Gaussian(0.1), {"*bias": Flat()}).check(["0.weight", "0.bias"])

    Args:
        default: for the weights that no pattern matches.
        overrides: priors by pattern, as the shell writes them: ``*`` any characters, ``?`` one, ``[ab]`` one of these.
            Names are those of ``model.named_parameters()``; capitals count.
    """

    default: Prior
    overrides: Mapping[str, Prior] = field(compare=False)
    _pairs: tuple[tuple[str, Prior], ...] = field(init=False, repr=False)  # equal only in the same order

    def __post_init__(self) -> None:
        checked_prior("default", self.default)
        if not isinstance(self.overrides, Mapping):
            _validate.refuse("overrides", "a mapping from patterns to priors", self.overrides)
        for pattern, prior in self.overrides.items():
            if not isinstance(pattern, str):
                _validate.refuse("A pattern in overrides", "a string such as '*bias'", pattern)
            checked_prior(f"overrides[{pattern!r}]", prior)
        object.__setattr__(self, "overrides", MappingProxyType(dict(self.overrides)))
        object.__setattr__(self, "_pairs", tuple(self.overrides.items()))

    def __repr__(self) -> str:
        return f"Grouped(default={self.default!r}, overrides={dict(self.overrides)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the overrides as a dictionary: a read-only mapping cannot be pickled."""
        return Grouped, (self.default, dict(self.overrides))

    def energy(self, weights: Weights) -> Tensor:
        """The sum of the groups' energies."""
        return _total(prior.energy(group) for prior, group in self._groups(weights))

    def energy_gradient(self, weights: Weights) -> Weights:
        """Each group's gradients."""
        gradients: Weights = {}
        for prior, group in self._groups(weights):
            gradients |= prior.energy_gradient(group)
        return {name: gradients[name] for name in weights}

    def check(self, names: Collection[str]) -> None:
        """Refuse a pattern that decides for no weight."""
        pattern_of = {name: self._first_match(name)[0] for name in names}
        for pattern in self.overrides:
            if pattern not in pattern_of.values():
                is_taken = any(fnmatchcase(name, pattern) for name in names)
                raise DpbnnError(
                    f"Pattern {pattern!r} of Grouped must match a weight"
                    + (", but patterns before it take all of its weights; put it first." if is_taken else _got(names))
                )
        for which, prior in [(None, self.default), *self._pairs]:
            prior.check([name for name in names if pattern_of[name] == which])

    def for_weight(self, name: str) -> Prior:
        """The prior of the first pattern that matches."""
        return self._first_match(name)[1].for_weight(name)

    def _groups(self, weights: Weights) -> Iterable[tuple[Prior, Weights]]:
        groups: dict[str | None, tuple[Prior, Weights]] = {}
        for name, values in weights.items():
            pattern, prior = self._first_match(name)
            groups.setdefault(pattern, (prior, {}))[1][name] = values
        return groups.values()

    def _first_match(self, name: str) -> tuple[str | None, Prior]:
        """The first pattern that matches, None for the default, and its prior."""
        return next((pair for pair in self._pairs if fnmatchcase(name, pair[0])), (None, self.default))


PRIORS: dict[str, type[Prior]] = {kind.__name__: kind for kind in (Flat, Gaussian, Laplace, ScaleMixture, Grouped)}
"""The built-in priors by name."""


def checked_prior(name: str, prior: object) -> Prior:
    """The prior; anything else is refused, and the error lists the built-in ones."""
    if not isinstance(prior, Prior):
        _validate.refuse(name, f"a Prior ({', '.join(PRIORS)}, or a subclass of your own)", prior)
    return prior


def _got(names: Collection[str]) -> str:
    shown = ", ".join(map(repr, list(names)[:NAMES_SHOWN]))
    more = len(names) - NAMES_SHOWN
    return f", got none among {shown}{f' and {more} more' if more > 0 else ''}; correct the pattern, or leave it out."


def _total(terms: Iterable[Tensor]) -> Tensor:
    return sum(terms, torch.zeros(()))
