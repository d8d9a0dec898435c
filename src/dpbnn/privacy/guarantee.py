"""The guarantee that travels with a release: what is promised, to whom, how it was computed, what voids it.

>>> from dpbnn.privacy.plan import PrivacyPlan
>>> plan = PrivacyPlan(dataset_size=60_000, batch_size=256, steps=3515, clip_norm=1.5, noise_multiplier=1.3,
...                    delta=1e-5)
>>> guarantee = PrivacyGuarantee.for_plan(plan)
>>> guarantee.epsilon, guarantee.accountant, guarantee.unit
(0.8645, 'pld', 'one record')

`for_ledger` makes the guarantee of a release from what was spent. It is complete then: nobody amends it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from dpbnn._validate import non_negative, one_of, refuse
from dpbnn.errors import DpbnnError
from dpbnn.files import json_values
from dpbnn.files.json_values import or_null
from dpbnn.privacy.accountants import ADJACENCIES, bounds, foreign_module
from dpbnn.privacy.ledger import Ledger, SearchCost
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.prose import describe, shown

__all__ = ["Circumstances", "PrivacyGuarantee", "rounded_up"]

_JSON_VERSION = 1
_TOLERANCE = 1e-3
"""How far figures may lie below today's: other versions of the accounting library differ in the last digits."""
_POSSIBLY_INFINITE = ("epsilon", "epsilon_replace_one")
_ADJACENCIES_OF_SEARCHES = ("add_or_remove", "zero_out")  # the joint cost of candidates is known for these alone
_NO_SEARCH = "a search over settings on the private data is not covered"
_PUBLIC_GRID = "the grid of candidates does not depend on the private data"


@dataclass(frozen=True)
class Circumstances:
    """Which data sets are neighbours, and what a front end assumes beside what is always assumed."""

    adjacency: str = "add_or_remove"
    assumptions: Sequence[str] = ()

    def __post_init__(self) -> None:
        one_of("adjacency", self.adjacency, ADJACENCIES)
        object.__setattr__(self, "assumptions", _texts("assumptions", self.assumptions))


@dataclass(frozen=True)
class PrivacyGuarantee:
    """Epsilon with everything that gives it meaning; `str()` says it in words.

    `for_plan` makes the guarantee of a possible release, and `for_ledger` that of a release.

    Guarantees:
        Epsilon is rounded up, never down.
        An approximation is never part of a guarantee.
        A guarantee that rests on an accountant from elsewhere says so, and what the package's own give.
        A voided guarantee says so first.
        JSON gives the same guarantee back.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    accountant: str
    remark: str
    epsilon_by_accountant: Mapping[str, float]
    epsilon_replace_one: float
    sampling: str
    mechanism: str
    released: str
    random_source: str
    assumptions: tuple[str, ...]
    voided_by: tuple[str, ...]
    plan: PrivacyPlan

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon_by_accountant", MappingProxyType(dict(self.epsilon_by_accountant)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Read-only mappings are not pickled by themselves."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(type(self), **values | {"epsilon_by_accountant": dict(self.epsilon_by_accountant)}), ()

    @classmethod
    def for_plan(
        cls,
        plan: PrivacyPlan,
        *,
        accountant: str | None = None,
        adjacency: str = "add_or_remove",
        assumptions: Sequence[str] = (),
        voided_by: Sequence[str] = (),
    ) -> Self:
        """The guarantee of a run that follows the plan.

        `assumptions` are added to those that are always made. With any reason in `voided_by`, such as "the noise was
        seeded by the user", there is no guarantee.
        """
        if not isinstance(plan, PrivacyPlan):
            refuse("plan", "a PrivacyPlan", plan)
        if accountant is not None:
            one_of("accountant of a guarantee", accountant, bounds())
        circumstances = Circumstances(adjacency, assumptions)
        figures = _figures(plan, accountant, adjacency)
        return cls._of(plan, figures, circumstances, "the operating system", voided_by)

    @classmethod
    def for_ledger(
        cls, ledger: Ledger, circumstances: Circumstances, *, random_source: str, voided_by: Sequence[str] = ()
    ) -> Self:
        """The guarantee of a run, or of the search that it is a part of, from its ledger, which is settled first."""
        settled = ledger.settle()
        if settled.search is None:
            figures = _figures(settled.plan, None, circumstances.adjacency)
        else:
            one_of("adjacency of a search", circumstances.adjacency, _ADJACENCIES_OF_SEARCHES)
            figures = _figures_of_search(settled.search)
        return cls._of(settled.plan, figures, circumstances, random_source, voided_by)

    @classmethod
    def _of(
        cls,
        plan: PrivacyPlan,
        figures: dict[str, Any],
        circumstances: Circumstances,
        random_source: str,
        voided_by: Sequence[str],
    ) -> Self:
        records = plan.max_records_per_person
        return cls(
            **figures | {"assumptions": (*_assumptions(plan), *figures["assumptions"], *circumstances.assumptions)},
            delta=plan.delta,
            adjacency=circumstances.adjacency,
            unit="one record" if records == 1 else f"one person with at most {records} records",
            sampling=f"Poisson, in each step every record with probability {plan.batch_size}/{plan.dataset_size}",
            mechanism=_mechanism(plan),
            random_source=random_source,
            voided_by=_texts("voided_by", voided_by),
            plan=plan,
        )

    @property
    def holds(self) -> bool:
        """Whether there is a guarantee: there is noise, and nothing voids it."""
        return self.plan.is_private and not self.voided_by

    def __str__(self) -> str:
        return describe(self)

    def to_json(self) -> str:
        """Strict JSON text; an infinite epsilon is null."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["plan"] = json.loads(self.plan.to_json())
        for name in _POSSIBLY_INFINITE:
            values[name] = or_null(values[name])
        by_accountant = self.epsilon_by_accountant.items()
        values["epsilon_by_accountant"] = {name: or_null(epsilon) for name, epsilon in by_accountant}
        return json_values.dump(_JSON_VERSION, {"holds": self.holds, **values})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The guarantee that `to_json` wrote, if its figures are those of its plan.

        The text is not signed: a person who can change it can also change the plan, or remove what voids it.
        """
        names = [field.name for field in fields(cls)]
        values = json_values.load("PrivacyGuarantee", text, {_JSON_VERSION: ["holds", *names]})
        holds = values.pop("holds")
        values["plan"] = PrivacyPlan.from_json(json.dumps(values["plan"]))
        by_accountant = values["epsilon_by_accountant"]
        if not isinstance(by_accountant, dict):
            refuse("epsilon_by_accountant", "a JSON object", by_accountant)
        values |= {name: _epsilon_of_json(name, values[name]) for name in _POSSIBLY_INFINITE}
        values["epsilon_by_accountant"] = {name: _epsilon_of_json(name, value) for name, value in by_accountant.items()}
        for name in ("assumptions", "voided_by"):
            values[name] = _texts(name, values[name])
        guarantee = cls(**values)
        if holds is not guarantee.holds:
            refuse("holds", f"{guarantee.holds}, as the other fields say", holds)
        guarantee._refuse_other_figures()
        return guarantee

    def _refuse_other_figures(self) -> None:
        if self.plan.is_private and self.accountant not in bounds():
            known = ", ".join(map(repr, bounds()))
            raise DpbnnError(
                f"accountant of a guarantee must be one of {known}, got {self.accountant!r}. If it is one of yours, "
                "register it first: its figures are computed again."
            )
        accountant = self.accountant if self.plan.is_private else None
        expected = type(self).for_plan(self.plan, accountant=accountant, adjacency=self.adjacency)
        for name in ("delta", "unit", "sampling", "mechanism"):
            if getattr(self, name) != getattr(expected, name):
                refuse(f"{name} of a guarantee", f"{getattr(expected, name)!r}, as its plan says", getattr(self, name))
        replacing = self.plan.epsilon(adjacency="replace_one")  # by whichever is tightest, as not all have a figure
        for name, least in {"epsilon": expected.epsilon, "epsilon_replace_one": replacing}.items():
            if getattr(self, name) < least * (1 - _TOLERANCE):
                refuse(f"{name} of a guarantee", f"at least {least}, as its plan costs", getattr(self, name))


def _assumed_of_foreign(plan: PrivacyPlan, accountant: str | None, adjacency: str) -> list[str]:
    """An assumption for each figure that rests on an accountant from outside the package."""
    assumed = []
    for neighbours in dict.fromkeys((adjacency, "replace_one")):
        name = plan.account(accountant, adjacency=neighbours).accountant
        if module := foreign_module(name):
            native = (known for known in bounds() if not foreign_module(known))
            figures = ((known.upper(), rounded_up(plan.epsilon(known, adjacency=neighbours))) for known in native)
            assumed.append(
                f"the accountant {name!r} of the module {module}, which is not part of dpbnn and which dpbnn has not "
                f"checked, gives a valid upper bound for adjacency {neighbours!r}, where "
                + " and ".join(f"{title} gives {shown(epsilon)}" for title, epsilon in figures)
            )
    return assumed


def _figures(plan: PrivacyPlan, accountant: str | None, adjacency: str) -> dict[str, Any]:
    """The fields that a run by itself decides."""
    tightest = plan.account(accountant, adjacency=adjacency)
    names = bounds() if plan.is_private else ()
    bought = ", the bounds and noise levels that it bought," if plan.pure_epsilons else ""
    return {
        "epsilon": rounded_up(tightest.epsilon),
        "accountant": tightest.accountant,
        "remark": tightest.remark,
        "epsilon_by_accountant": {name: rounded_up(plan.epsilon(name, adjacency=adjacency)) for name in names},
        "epsilon_replace_one": rounded_up(plan.epsilon(accountant, adjacency="replace_one")),
        "released": f"all iterates of the training run{bought} and everything computed from them",
        "assumptions": (_NO_SEARCH, *_assumed_of_foreign(plan, accountant, adjacency)),
    }


def _figures_of_search(cost: SearchCost) -> dict[str, Any]:
    """The same fields, decided by all that was done to find the released candidate."""
    return {
        "epsilon": cost.epsilon,
        "accountant": "rdp",
        "remark": "of the whole search",
        "epsilon_by_accountant": {"rdp": cost.epsilon},
        "epsilon_replace_one": math.inf,
        "released": "all candidates of a search, the choice between them, and everything computed from them",
        "assumptions": (_PUBLIC_GRID,),
    }


def _epsilon_of_json(name: str, value: object) -> float:
    """An epsilon, or infinity, for which null stands."""
    return math.inf if value is None else non_negative(name, value)


def _texts(name: str, given: Sequence[str]) -> tuple[str, ...]:
    """A tuple of texts; a single text, which is a sequence of letters, is refused."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(text, str) for text in given):
        refuse(name, "a list of texts", given)
    return tuple(given)


def rounded_up(epsilon: float) -> float:
    """Epsilon to four decimals, or to four digits below 1 and above 1000; never less than it is."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return epsilon
    decimals = min(3 - math.floor(math.log10(epsilon)), 308)  # 10^309 is no float
    factor = 10.0 ** (decimals if epsilon > 1000 else max(4, decimals))
    return max(math.ceil(epsilon * factor) / factor, epsilon)


def _mechanism(plan: PrivacyPlan) -> str:
    if not plan.is_private:
        return "no clipping, no noise"
    noises = [noise for noise, _ in plan.noise_levels]
    noise = f"{noises[0]:g}" if len(noises) == 1 else f"{min(noises):g} to {max(noises):g}"
    clip = f"{plan.clip_norm:g}" if isinstance(plan.clip_norm, float) else "a fixed schedule"
    steps = (
        f"{plan.steps} Gaussian releases, {plan.clipping} clipping of each record's gradient to norm {clip}, "
        f"noise multiplier {noise}"
    )
    if not plan.pure_epsilons:
        return steps
    total = rounded_up(plan.max_records_per_person * sum(plan.pure_epsilons))
    releases = "1 release" if len(plan.pure_epsilons) == 1 else f"{len(plan.pure_epsilons)} releases"
    return f"{steps}; and {releases} without delta (bounds, noise levels), of epsilon {shown(total)} in all"


def _assumptions(plan: PrivacyPlan) -> tuple[str, ...]:
    return (
        f"the data set size {plan.dataset_size} is a public number",
        f"no person has more than {plan.max_records_per_person} record"
        + ("s" if plan.max_records_per_person > 1 else ""),
        "the initial weights and all settings do not depend on the private data",
        "what checks of the values find before training, such as labels out of range, is for the data holder only",
        "the model treats each record alone in all circumstances, as it did on synthetic ones before training",
        "a record's gradient and prediction are rounded alike whichever records share its batch",
        "the machine that trains is trusted, and its random generators, which are not cryptographic, are not predicted",
        "side channels of floating-point arithmetic and of timing are not covered",
    )
