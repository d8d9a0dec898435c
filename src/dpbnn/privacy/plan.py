"""The privacy plan: everything that decides what a training run costs, fixed before any data is touched.

    >>> plan = PrivacyPlan(dataset_size=60_000, batch_size=256, steps=3515,
    ...                    clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)
    >>> round(plan.epsilon(), 4)
    0.8645

One step releases the sum of clipped gradients over a Poisson sample (rate q = batch_size / dataset_size) with
Gaussian noise of standard deviation noise_multiplier * clip_norm. Everything else is post-processing.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Self

from dpbnn._validate import fraction, one_of, positive, refuse, whole_number
from dpbnn.files import json_values
from dpbnn.privacy.accountants import Accounting, Charge, account, bounds
from dpbnn.privacy.accountants.calibration import least_noise
from dpbnn.schedule import Runs, Schedule, as_schedule, check_length, levels, value_at

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["CLIPPING_STYLES", "PrivacyPlan", "checked_level"]

CLIPPING_STYLES = ("flat", "automatic")
"""flat: min(1, C / |g|) g; automatic: C g / (|g| + gamma). Both have norm at most C."""

_PURE_EPSILONS_SINCE = 2
"""The version of the JSON text; a plan without them is written as version 1, which older releases read too."""
_LARGEST = 10**15
_SMALLEST_CLIP_NORM = 1e-12


@dataclass(frozen=True)
class PrivacyPlan:
    """All that a run will be charged for. `dataset_size` is the declared, public n; it is never read from the records.

    `noise_multiplier` and `clip_norm` are numbers, or runs of (value, steps) that follow one another. `pure_epsilons`
    belong to releases from the same records that the run builds on, such as bounds of its columns. Each is private by
    itself without a delta, for one record that is added or removed, and is charged with the run.

    Guarantees:
        Epsilon falls with noise and delta and grows with rate and steps.
        Two equal runs cost what one costs.
        A plan without privacy has infinite epsilon.
        JSON gives the same plan back.
    """

    dataset_size: int
    batch_size: int
    steps: int
    clip_norm: Schedule
    noise_multiplier: Schedule
    delta: float
    clipping: str = "flat"
    max_records_per_person: int = 1
    pure_epsilons: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("dataset_size", "batch_size", "steps", "max_records_per_person"):
            put(name, whole_number(name, getattr(self, name)))
        if self.dataset_size > _LARGEST:
            refuse("dataset_size", f"at most {_LARGEST:.0e}", self.dataset_size)
        for name in ("batch_size", "max_records_per_person"):
            if getattr(self, name) > self.dataset_size:
                refuse(name, f"at most dataset_size ({self.dataset_size})", getattr(self, name))
        put("clipping", one_of("clipping", self.clipping, CLIPPING_STYLES))
        given: object = self.pure_epsilons
        if isinstance(given, str) or not isinstance(given, Sequence):
            refuse("pure_epsilons", "a list of numbers", given)
        put("pure_epsilons", tuple(positive("each of pure_epsilons", epsilon) for epsilon in given))
        if _is_without_privacy(self.clip_norm, self.noise_multiplier, self.delta):
            if self.pure_epsilons:
                refuse("pure_epsilons", "empty for a plan without privacy", self.pure_epsilons)
            for name, value in (("clip_norm", math.inf), ("noise_multiplier", 0.0), ("delta", 0.0)):
                put(name, value)
            return
        for name in ("clip_norm", "noise_multiplier"):
            schedule = as_schedule(name, getattr(self, name), checked_level)
            check_length(name, schedule, self.steps)
            put(name, schedule if isinstance(schedule, float) or len(schedule) > 1 else schedule[0][0])
        put("delta", fraction("delta", self.delta))

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        dataset_size: int,
        batch_size: int,
        steps: int,
        clip_norm: Schedule,
        clipping: str = "flat",
        max_records_per_person: int = 1,
        pure_epsilons: Sequence[float] = (),
        adjacency: str = "add_or_remove",
    ) -> Self:
        """The plan with the least noise whose tightest valid epsilon is at most `epsilon`."""
        settings = dataset_size, batch_size, steps, clip_norm, 1.0, delta, clipping, max_records_per_person
        return cls(*settings, tuple(pure_epsilons)).within(epsilon, adjacency=adjacency)

    def within(self, epsilon: float, *, adjacency: str = "add_or_remove") -> Self:
        """The same plan with the least noise, at one level, whose tightest valid epsilon is at most `epsilon`.

        Guarantees:
            The calibrated plan keeps its budget.
            A little less noise would break the budget.
        """
        return replace(self, noise_multiplier=least_noise(self.charge(adjacency=adjacency), epsilon))

    @classmethod
    def without_privacy(cls, *, dataset_size: int, batch_size: int, steps: int) -> Self:
        """The same run without clipping and noise: no guarantee is claimed, epsilon is infinite."""
        return cls(dataset_size, batch_size, steps, clip_norm=math.inf, noise_multiplier=0.0, delta=0.0)

    @property
    def is_private(self) -> bool:
        """Whether there is noise, and so a guarantee."""
        return self.noise_multiplier != 0.0

    @property
    def sampling_rate(self) -> float:
        """The probability q with which a record joins a batch."""
        return self.batch_size / self.dataset_size

    @property
    def noise_levels(self) -> Runs:
        """The distinct noise multipliers, each with the number of steps that use it."""
        return levels(self.noise_multiplier, self.steps)

    def noise_at(self, step: int) -> float:
        """The noise multiplier of a step, counted from 0."""
        return value_at(self.noise_multiplier, self._checked_step(step))

    def clip_norm_at(self, step: int) -> float:
        """The clip norm of a step, counted from 0."""
        return value_at(self.clip_norm, self._checked_step(step))

    def _checked_step(self, step: int) -> int:
        if type(step) is int and 0 <= step < self.steps:
            return step
        if whole_number("step", step, at_least=0) >= self.steps:
            refuse("step", f"below the plan's {self.steps} steps", step)
        return step

    def charge(self, *, adjacency: str = "add_or_remove", steps: int | None = None) -> Charge:
        """The question to an accountant: the whole run, or its first `steps` steps."""
        taken = self.steps if steps is None else whole_number("steps", steps, at_least=0)
        if taken > self.steps:
            refuse("steps", f"at most the plan's {self.steps}", taken)
        charged, most = levels(self.noise_multiplier, taken), self.max_records_per_person
        return Charge(self.sampling_rate, charged, self.delta, most, adjacency, self.pure_epsilons)

    def epsilon(
        self, accountant: str | None = None, *, adjacency: str = "add_or_remove", steps: int | None = None
    ) -> float:
        """The epsilon of the run, or of its first `steps` steps.

        `accountant` is a name in `dpbnn.privacy.accountants.ACCOUNTANTS`, or None for the tightest valid bound; "gdp"
        is an approximation that can be far too small. The adjacency "zero_out", for a record that is blanked out with
        n public, costs as much as "add_or_remove"; "replace_one" costs more.
        """
        return self.account(accountant, adjacency=adjacency, steps=steps).epsilon

    def account(
        self, accountant: str | None = None, *, adjacency: str = "add_or_remove", steps: int | None = None
    ) -> Accounting:
        """As `epsilon`, with the name of the accountant and a remark about the figure."""
        charge = self.charge(adjacency=adjacency, steps=steps)
        if charge.steps == 0:
            pure = charge.records_changed * sum(self.pure_epsilons)
            return Accounting(pure, accountant or bounds()[0], "no step was taken")
        if not self.is_private:
            return Accounting(math.inf, accountant or "none", "there is no noise")
        return account(charge, accountant)

    def dp_event(self) -> "DpEvent":
        """The whole run as a dp-accounting event, for any accountant that reads those."""
        from dpbnn.privacy.accountants.event import composed_event

        return composed_event(self.charge())

    def to_json(self) -> str:
        """Strict JSON text; the infinite clip norm of a plan without privacy is null."""
        values = asdict(self) | {"clip_norm": self.clip_norm if self.is_private else None}
        if self.pure_epsilons:
            return json_values.dump(_PURE_EPSILONS_SINCE, values)
        del values["pure_epsilons"]
        return json_values.dump(1, values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` wrote; checked as strictly as any other."""
        names = [field.name for field in fields(cls)]
        versions = {1: [name for name in names if name != "pure_epsilons"], _PURE_EPSILONS_SINCE: names}
        values = json_values.load("PrivacyPlan", text, versions)
        without_privacy = values["clip_norm"] is None
        return cls(**values | ({"clip_norm": math.inf} if without_privacy else {}))


def _is_without_privacy(*given: object) -> bool:
    """Whether clip norm, noise and delta are infinite, 0 and 0; a private run has none of these values."""
    are_numbers = all(isinstance(value, Real) and not isinstance(value, bool) for value in given)
    return are_numbers and given == (math.inf, 0, 0)


def checked_level(name: str, value: object) -> float:
    """A clip norm or noise multiplier that can be computed with."""
    level = positive(name, value)
    if name == "clip_norm" and level < _SMALLEST_CLIP_NORM:
        refuse(name, f"at least {_SMALLEST_CLIP_NORM}, as smaller squares leave float32", value)
    return level if level <= _LARGEST else refuse(name, f"at most {_LARGEST:.0e}", value)
