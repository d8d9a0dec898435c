"""A privacy linter: what is wrong or risky about a whole set-up, said before anything is spent.

    >>> import dpbnn
    >>> level = dict(clip_norm=1.0, noise_multiplier=2.0, delta=0.1)
    >>> plan = dpbnn.PrivacyPlan(dataset_size=100, batch_size=10, steps=50, **level)
    >>> [finding.name for finding in inspect(Setup(plan))]
    ['delta-not-small']

Each finding has a name, a severity, what was found, why it matters and the cure. Nothing here looks at a private value:
shapes, settings, names of columns and of persons, the identity of arrays, and data that is declared public are all.

    hole    the promise would not hold, or there is none
    weak    it holds, and says little
    care    it holds, and is easily spoiled or misread
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpbnn.clipping import CheckedModel, check_model, clip_and_sum
from dpbnn.likelihoods import Likelihood
from dpbnn.methods import SGLD, Method
from dpbnn.priors import Gaussian
from dpbnn.privacy.contributions import numbered
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.records import as_records
from dpbnn.schedule import runs_of
from dpbnn.types import DpbnnError

__all__ = ["RULES", "Finding", "Rule", "Setup", "inspect", "noted", "refuse"]

LARGEST_EPSILON = 10.0
NEARLY_ALL, NEARLY_NONE = 0.99, 0.01
FEW = 1000
"""Public records that tell whether a clip norm suits."""
HARMLESS = ("FunctionTransformer", "Normalizer", "Binarizer")
"""Transformers of scikit-learn's that learn nothing from the rows."""
IDENTIFIERS = ("id", "name", "patient", "person", "customer", "client", "user", "ssn")
"""What columns are called that say whose row it is."""
WITH_CATEGORIES = ("OneHotEncoder", "OrdinalEncoder")


@dataclass(frozen=True)
class Setup:
    """All that decides what a run promises; what is not known is left out.

    Args:
        plan: what is charged.
        model: the network.
        likelihood: of its outputs.
        method: how it is trained.
        x: private inputs, as `fit` takes them, of which shape, type and identity are looked at.
        y: private targets, likewise.
        public_data: (X, y) that are declared public.
        people: the person of each row.
        unused: names of columns that are not learned from.
        preprocessing: a pipeline or transformers of scikit-learn that come before.
        accountant: by which epsilon is quoted.
        unsafe_seed: as for `fit`.
        unsafe_diagnostics: as for `fit`.
    """

    plan: PrivacyPlan
    model: nn.Module | None = None
    likelihood: Likelihood | None = None
    method: Method[Any] | None = None
    x: Any = None
    y: Any = None
    public_data: tuple[Any, Any] | None = None
    people: Any = None
    unused: Sequence[str] = ()
    preprocessing: Any = None
    accountant: str | None = None
    unsafe_seed: int | None = None
    unsafe_diagnostics: bool = False


@dataclass(frozen=True)
class Rule:
    """What to look for; `look` says what it found, or nothing."""

    name: str
    severity: str
    why: str
    cure: str
    look: Callable[[Setup], str]

    def finding(self, found: str) -> "Finding":
        """What it says where something was found."""
        return Finding(self.name, self.severity, found, self.why, self.cure)


@dataclass(frozen=True)
class Finding:
    """Something about a set-up that should be known before it is used."""

    name: str
    severity: str
    found: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}: {self.found}. {self.why} {self.cure}"


RULES: dict[str, Rule] = {}
"""All of them by name, holes first."""


def inspect(setup: Setup) -> list[Finding]:
    """All that the rules find, holes first."""
    return [rule.finding(found) for rule in RULES.values() if (found := rule.look(setup))]


def noted(found: Mapping[str, str]) -> list[Finding]:
    """What was found earlier, from what each rule said of it; rules that are no longer known are left out."""
    return [rule.finding(found[name]) for name, rule in RULES.items() if name in found]


def refuse(findings: Sequence[Finding], name: str) -> None:
    """Raise where this rule has found something."""
    for own in findings:
        if own.name == name:
            raise DpbnnError(f"{own.found}. {own.why} {own.cure}")


def _rule(severity: str, why: str, cure: str) -> Callable[[Callable[[Setup], str]], Callable[[Setup], str]]:
    """Enter a function into `RULES` under its own name."""

    def enter(look: Callable[[Setup], str]) -> Callable[[Setup], str]:
        name = look.__name__.strip("_").replace("_", "-")
        RULES[name] = Rule(name, severity, why, cure, look)
        return look

    return enter


@_rule("hole", "Whatever is released shows the records.", "Calibrate a plan: PrivacyPlan.for_budget.")
def _no_noise(setup: Setup) -> str:
    return "" if setup.plan.is_private else "the plan adds no noise"


@_rule(
    "hole",
    "Clipping bounds what a record adds, not what it does to others.",
    "Use layers that treat each record alone, such as GroupNorm or LayerNorm.",
)
def _records_mix(setup: Setup) -> str:
    if setup.model is None or setup.likelihood is None or setup.x is None:
        return ""
    try:
        _checked(setup.model, setup.likelihood, setup.x, setup.y)
    except DpbnnError as error:
        return str(error).rstrip(".")
    return ""


def _checked(model: nn.Module, likelihood: Likelihood, x: Any, y: Any) -> CheckedModel:
    own = next(model.parameters())
    empty = (as_records(x, None, own.dtype) if y is None else as_records(x[:0], y[:0], own.dtype)).empty
    return check_model(model, likelihood, *(part.to(own.device) for part in empty))


@_rule("hole", "Whoever knows the seed subtracts the noise.", "Leave unsafe_seed out.")
def _fixed_noise_seed(setup: Setup) -> str:
    return "" if setup.unsafe_seed is None else "sampling and noise come from a seed"


@_rule("hole", "They are as private as the records.", "Leave unsafe_diagnostics out.")
def _values_without_noise(setup: Setup) -> str:
    return "values without noise are kept" if setup.unsafe_diagnostics else ""


@_rule(
    "hole",
    "The promise would be for a row, and a person has several.",
    "Raise max_records_per_person, or drop rows: groups, or a person column.",
)
def _rows_per_person(setup: Setup) -> str:
    if setup.people is None:
        return ""
    most = max(Counter(numbered(setup.people).tolist()).values(), default=0)
    allowed = setup.plan.max_records_per_person
    return f"a person has more rows than the {allowed} that are accounted for" if most > allowed else ""


@_rule("hole", "What they learn is released with the model, without noise.", "Use public bounds and named categories.")
def _fitted_preprocessing(setup: Setup) -> str:
    names = [] if setup.preprocessing is None else sorted(set(_learning(setup.preprocessing)))
    return f"{', '.join(names)} learn from the rows before they are private" if names else ""


def _learning(step: Any) -> Iterator[str]:
    """Names of transformers that are fitted on the data, in pipelines and column transformers too."""
    if isinstance(step, str) or step is None or hasattr(step, "predict"):
        return
    if hasattr(step, "steps") or hasattr(step, "transformers"):
        step = [own[1] for own in (step.steps if hasattr(step, "steps") else step.transformers)]
    if isinstance(step, Sequence):
        for own in step:
            yield from _learning(own)
        return
    name = type(step).__name__
    is_told = name in WITH_CATEGORIES and not isinstance(step.categories, str)
    if name not in HARMLESS and not is_told:
        yield name


@_rule("hole", "Measures along the way would show private records without noise.", "Give data that is public.")
def _evaluation_on_training_data(setup: Setup) -> str:
    if setup.public_data is None or setup.x is None:
        return ""
    pairs = zip((setup.x, setup.y), setup.public_data, strict=True)
    same = any(_is_same_memory(*pair) for pair in pairs)
    return "public_data must not be the training data, got the same arrays" if same else ""


def _is_same_memory(first: Any, second: Any) -> bool:
    if first is second:
        return first is not None
    if not (isinstance(first, Tensor | np.ndarray) and isinstance(second, Tensor | np.ndarray)):
        return False
    try:
        return np.shares_memory(np.asarray(first), np.asarray(second))
    except (TypeError, ValueError, RuntimeError):
        return False


@_rule(
    "weak",
    "With such a delta, publishing a random record would be allowed.",
    "Take delta well below one over the number of records.",
)
def _delta_not_small(setup: Setup) -> str:
    plan = setup.plan
    if not plan.is_private or plan.delta < 1 / plan.dataset_size:
        return ""
    return f"delta is {plan.delta:g} for {plan.dataset_size} records"


@_rule("weak", "Odds about a record may change by a factor of e^epsilon.", "Spend less, or do not call it private.")
def _large_epsilon(setup: Setup) -> str:
    epsilon = setup.plan.epsilon()
    return f"epsilon is {epsilon:.3g}" if setup.plan.is_private and epsilon > LARGEST_EPSILON else ""


@_rule("weak", "GDP is an approximation that can be too small, and no bound.", "Quote PLD or RDP.")
def _gdp_only(setup: Setup) -> str:
    return "epsilon is quoted by GDP" if setup.accountant == "gdp" else ""


@_rule(
    "care",
    "Buffers get no noise: what is in them is released as it is.",
    "Make sure that they hold nothing of the data.",
)
def _buffers(setup: Setup) -> str:
    names = [] if setup.model is None else [name for name, _ in setup.model.named_buffers()]
    return f"the network has buffers ({', '.join(names[:5])})" if names else ""


@_rule(
    "care",
    "If a person has several rows, the promise is for one row and not for the person.",
    "Name the column as person in the schema, or pass groups.",
)
def _person_not_named(setup: Setup) -> str:
    likely = [name for name in setup.unused if set(re.split(r"[^a-z]+", name.lower())) & set(IDENTIFIERS)]
    if setup.people is not None or not likely:
        return ""
    return f"every row counts as another person, and there is a column {likely[0]!r}"


@_rule(
    "care",
    "Samples would show the noise of privacy rather than the posterior.",
    "Lower the rate or the clip norm, or take more steps.",
)
def _temperature(setup: Setup) -> str:
    if setup.method is None or not setup.plan.is_private:
        return ""
    return " ".join(setup.method.remarks(setup.plan)).rstrip(".")


@_rule(
    "care",
    "Where the data say little, samples still lie near the first weights, and spread less than the temperature asks.",
    "Take more steps, a larger rate or a narrower prior.",
)
def _short_chain(setup: Setup) -> str:
    """A Gaussian prior of scale s pulls a weight back over s^2 / eta steps."""
    method, steps = setup.method, setup.plan.steps
    if not isinstance(method, SGLD) or not isinstance(method.prior, Gaussian):
        return ""
    time = sum(rate * number for rate, number in runs_of(method.learning_rate, steps))
    relaxation = method.prior.scale**2
    if time >= relaxation:
        return ""
    needed = round(relaxation / time * steps)
    return f"of {steps} steps, the prior takes some {needed:,} to forget where the chain began"


@_rule(
    "care",
    "Clipping everything loses the gradients' sizes; clipping nothing wastes noise.",
    "Choose it near the median norm on public data.",
)
def _clip_norm(setup: Setup) -> str:
    """By gradients of public records at the initial weights."""
    plan = setup.plan
    if setup.public_data is None or setup.model is None or setup.likelihood is None or not plan.is_private:
        return ""
    try:
        checked = _checked(setup.model, setup.likelihood, *setup.public_data)
    except DpbnnError:
        return ""
    own = next(setup.model.parameters())
    all_x, all_y = next(as_records(*setup.public_data, own.dtype).all())
    x, y = (part[:FEW].to(own.device) for part in (all_x, all_y))
    least = min(norm for norm, _ in runs_of(plan.clip_norm, plan.steps))
    weights = checked.objective.model_weights() | checked.likelihood_weights
    norms: list[Tensor] = []
    clip_and_sum(checked, weights, x, y, least, observe=lambda found, _: norms.append(found))
    share = float((torch.cat(norms) > least).double().mean())
    if NEARLY_NONE <= share <= NEARLY_ALL:
        return ""
    what = "all" if share > NEARLY_ALL else "none"
    return f"clip norm {least:g} clips nearly {what} of the public records at the initial weights"
