"""How methods, likelihoods and priors are made: all that the registries hold, and nothing that they do not.

What is registered takes part by itself. What needs more than its name to be made has an entry in one of the tables
here; where one is missing, the cells in question fail and say which.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import dpbnn
from dpbnn.methods import METHODS, KeepSamples, KeepSummary, Method
from dpbnn.models import priors
from dpbnn.models.likelihoods import LIKELIHOODS, Likelihood
from dpbnn.schedule import runs_of

HERE = "tests/together/combinations/makers.py"


class UnknownError(Exception):
    """Something is registered that nobody here knows how to make; the message says where to add it."""


def _hotter(plan: dpbnn.PrivacyPlan) -> float:
    """A temperature that asks for half as much noise again as the plan has, in all of its steps at least."""
    if not plan.is_private:
        return 2.0
    implied = dpbnn.SGLD(RATES["sgld"]).temperature_under(plan)
    return 2.25 * max(tau for tau, _ in runs_of(implied, plan.steps))


Arguments = Mapping[str, Any]

FORMS: dict[str, dict[str, Arguments]] = {
    "sgld": {"sgld": {}, "sgld hot": {"temperature": _hotter}},
    "bbp": {
        "bbp aligned": {"form": "aligned"},
        "bbp joint 1": {"form": "joint", "num_draws": 1},
        "bbp joint 3": {"form": "joint", "num_draws": 3},
    },
}
"""The forms of a registered method with their arguments; one that is not here has a single form, its name. A function
among the arguments is called with the plan."""
RATES = {"sgld": 1e-3}
"""Learning rates, where 0.05 does not suit."""
OPTIMIZERS: dict[str, Arguments] = {"plain": {}, "momentum": {"momentum": 0.5}, "Adam": {"optimizer": "Adam"}}
KEEPING = {"samples": KeepSamples(burn_in=0), "summary": KeepSummary(rank=2, burn_in=0)}


def method_forms() -> dict[str, str]:
    """The registered method of each form."""
    return {form: name for name in METHODS for form in FORMS.get(name, {name: {}})}


def methods_that_take(argument: str) -> list[str]:
    """The forms of the methods that have this argument."""
    return [
        form for form, name in method_forms().items() if argument in inspect.signature(METHODS[name].load()).parameters
    ]


def methods_that_need_dropout() -> list[str]:
    """The forms of the methods that refuse a network without."""
    return [form for form, name in method_forms().items() if METHODS[name].has_dropout]


def methods_for_tables() -> list[str]:
    """The first form of each method that the estimators and the command line have."""
    first = {name: form for form, name in reversed(method_forms().items())}
    return [form for name, form in first.items() if name in METHODS]


def make_method(form: str, optimizer: str, keep: str, prior: str, plan: dpbnn.PrivacyPlan) -> Method[Any]:
    """The method of a cell."""
    name = method_forms()[form]
    known = inspect.signature(METHODS[name].load()).parameters
    given: dict[str, Any] = {"learning_rate": RATES.get(name, 0.05)} | dict(FORMS.get(name, {form: {}})[form])
    given = {key: value(plan) if inspect.isfunction(value) else value for key, value in given.items()}
    given |= {key: value for key, value in OPTIMIZERS[optimizer].items() if key in known}
    given |= {"prior": make_prior(prior)} if "prior" in known else {}
    given |= {"keep_as": KEEPING[keep]} if "keep_as" in known else {}
    try:
        return METHODS[name].load()(**given)
    except TypeError as error:
        raise UnknownError(
            f"METHODS has {name!r}, which cannot be made with {sorted(given)} ({error}); add its arguments to FORMS "
            f"in {HERE}."
        ) from error


PRIORS: dict[str, Callable[[], dpbnn.models.priors.Prior]] = {
    "Gaussian": lambda: priors.Gaussian(0.5),
    "Laplace": lambda: priors.Laplace(0.5),
    "ScaleMixture": priors.ScaleMixture,
    "Flat": priors.Flat,
    "Grouped": lambda: priors.Grouped(priors.Laplace(0.5), {"*bias": priors.Flat()}),
}


def prior_kinds() -> list[str]:
    """All built-in ones."""
    return list(priors.PRIORS)


def make_prior(kind: str) -> priors.Prior:
    """One of them."""
    if kind not in PRIORS:
        raise UnknownError(
            f"The registry of priors has {kind!r}, whose arguments are unknown; add it to PRIORS in {HERE}."
        )
    return PRIORS[kind]()


@dataclass(frozen=True)
class Targets:
    """What a likelihood needs: so many outputs of the network, targets of this kind, and its own arguments by form.

    `made` gives targets for so many records; `strange` is one that is legal and far out, or no number.
    """

    outputs: int
    made: Callable[[int, torch.Generator], Tensor]
    strange: Callable[[Tensor], Tensor] = lambda y: y
    forms: Mapping[str, Arguments] | None = None
    is_for_tables: bool = False


def _with(value: float) -> Callable[[Tensor], Tensor]:
    return lambda y: torch.full_like(y, value)


TARGETS: dict[str, Targets] = {
    "Categorical": Targets(
        3, lambda count, chance: torch.randint(0, 3, (count,), generator=chance), is_for_tables=True
    ),
    "Bernoulli": Targets(
        1, lambda count, chance: torch.randint(0, 2, (count,), generator=chance).float(), _with(float("nan"))
    ),
    "HomoscedasticGaussian": Targets(
        2,
        lambda count, chance: torch.randn(count, 2, generator=chance),
        _with(float("inf")),
        {"HomoscedasticGaussian": {}, "HomoscedasticGaussian known": {"noise_std": 0.5}},
        is_for_tables=True,
    ),
    "HeteroscedasticGaussian": Targets(
        2, lambda count, chance: torch.randn(count, generator=chance), _with(float("nan"))
    ),
}
"""By the registered name."""


def likelihood_forms() -> dict[str, str]:
    """The registered likelihood of each form."""
    return {form: name for name in LIKELIHOODS for form in (name in TARGETS and TARGETS[name].forms) or {name: {}}}


def likelihoods_for_tables() -> list[str]:
    """The first form of each that estimators and the command line train with: they choose the rest themselves."""
    first: dict[str, str] = {}
    for form, name in likelihood_forms().items():
        first.setdefault(name, form)
    return [form for name, form in first.items() if name in TARGETS and TARGETS[name].is_for_tables]


def targets_of(form: str) -> Targets:
    """What this form needs."""
    name = likelihood_forms()[form]
    if name not in TARGETS:
        raise UnknownError(
            f"LIKELIHOODS has {name!r}, and nobody knows what its targets look like; add them to TARGETS in {HERE}."
        )
    return TARGETS[name]


def make_likelihood(form: str) -> Likelihood:
    """The likelihood of a cell."""
    arguments = (targets_of(form).forms or {form: {}})[form]
    return LIKELIHOODS[likelihood_forms()[form]](**arguments)
