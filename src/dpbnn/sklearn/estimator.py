"""What the classifier and the regressor share."""

import pickle
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpbnn import _validate, guard
from dpbnn.choosing import METHODS, Chosen, Facts, choose
from dpbnn.prediction import Prediction
from dpbnn.privacy.bounds import Bounds, Purchase, purchase
from dpbnn.privacy.budget import arrived_from, home, spending
from dpbnn.privacy.contributions import kept_rows
from dpbnn.tabular import train
from dpbnn.types import DpbnnError, DpbnnWarning

__all__ = ["DPBayesEstimator", "Terms", "as_bounds", "keep_arguments"]

BUDGET_IN = "_budget_in"
NOTHING: tuple[tuple[Any, ...], bytes] = ((), b"")
GONE = object()
LARGEST_SEED = 2**31 - 1
GIVEN_AS_PUBLIC = ("bounds", "target_bounds", "classes")
SETTINGS = ("hidden", "learning_rate", "clip_norm", "batch_size", "epochs", "prior_scale", "dropout")
"""What is chosen where it is not given."""


@dataclass(frozen=True)
class Terms:
    """Of one fit: public facts, settings with the plan that pays for everything, and how bounds are bought."""

    facts: Facts
    chosen: Chosen
    bought: Purchase | None


class DPBayesEstimator(BaseEstimator):  # type: ignore[misc]
    """A network on columns that are clipped to bounds and scaled to -1 to 1.

    Args:
        method: "sgld", "bbp", "mc_dropout" or "sgd".
        epsilon: the budget of one fit, bounds that are bought included.
        delta: its delta.
        bounds: public ones: (low, high) for all columns, or such a pair for each; None buys them from the data.
        bounds_share: what bought bounds would cost by themselves, as a share of epsilon.
        hidden: widths of hidden layers; None chooses, as all that follow.
        learning_rate: of a mean gradient.
        clip_norm: the largest norm of a row's gradient.
        batch_size: expected rows in a step.
        epochs: passes over the rows.
        prior_scale: of the Gaussian prior on the weights.
        dropout: the share of units dropped by "mc_dropout".
        num_draws: draws of the weights that predictions average.
        dataset_size: the public number of rows; None takes the number that is given for public.
        max_records_per_person: how many rows one person may have; with `groups`, further ones are dropped.
        checkpoint: a folder from which an interrupted fit continues.
        take_over: continue also a checkpoint of another host, whose worker is gone or must stop.
        random_state: for the first weights and the draws of predictions; never for sampling or noise.
        verbose: whether to show a progress bar.
    """

    method: str
    epsilon: float
    delta: float
    bounds: Any
    bounds_share: float
    num_draws: int
    dataset_size: int | None
    max_records_per_person: int
    checkpoint: Any
    take_over: bool
    random_state: Any
    verbose: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # sampling and noise take no seed
        return tags

    def __getstate__(self) -> Any:
        """Without references to records; with where its budget is, if it is sent to another process to be fitted."""
        own = {name: value for name, value in super().__getstate__().items() if name != "_fitted_on"}
        return own | {BUDGET_IN: home()}

    def __setstate__(self, state: Any) -> None:
        """Where there is an open budget, this process now knows of it, also for clones and searches."""
        arrived_from(state.pop(BUDGET_IN, None))
        super().__setstate__(state)

    def _is_repeated(self, *data: Any) -> bool:
        """Whether this very fit, of the same arrays with the same settings, was the last one: nothing is spent twice.

        It is the arrays' identity that counts, which is the program's doing, and never what they hold.
        """
        last, settings = getattr(self, "_fitted_on", NOTHING)
        same = len(last) == len(data) and all(ref() is own for ref, own in zip(last, data, strict=True))
        if not same or settings != pickle.dumps(self.get_params()):
            return False
        warnings.warn(
            "This estimator has been fitted on these very arrays with these settings: its release stays as it is, and "
            "nothing is spent. If they were changed in place, pass copies.",
            DpbnnWarning,
            stacklevel=3,
        )
        return True

    def _remember(self, *data: Any) -> Self:
        """By weak references: no record stays alive, or is pickled, with the estimator."""
        try:
            self._fitted_on = tuple(_reference(own) for own in data), pickle.dumps(self.get_params())
        except (TypeError, AttributeError, pickle.PicklingError):  # a list, which takes none; settings of odd kinds
            self._fitted_on = NOTHING
        return self

    def _kept(self, X: np.ndarray, y: np.ndarray, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        """At most so many rows of each person."""
        if groups is None:
            return X, y
        if len(groups) != len(X):
            _validate.refuse("groups", f"one name for each of the {len(X)} rows", len(groups))
        rows = kept_rows(groups, self.max_records_per_person)
        return X[rows], y[rows]

    def _terms(self, rows: int, columns: int, outputs: int) -> "Terms":
        """What is bought, chosen and paid: settled by public numbers, before any record is looked at."""
        most = _validate.whole_number("max_records_per_person", self.max_records_per_person)
        epsilon, delta = _validate.positive("epsilon", self.epsilon), _validate.fraction("delta", self.delta)
        share = _validate.fraction("bounds_share", self.bounds_share)
        size = rows if self.dataset_size is None else _validate.whole_number("dataset_size", self.dataset_size)
        wanted = self._unbounded(columns)
        if wanted and self.checkpoint is not None:
            raise DpbnnError(
                "checkpoint must come with public bounds: an interrupted fit would buy others, and pay again; give "
                "bounds, or use dpbnn fit, which keeps them."
            )
        bought = purchase(wanted, size, share * epsilon / most, delta, self._buys_target()) if wanted else None
        facts = Facts(
            rows=size,
            columns=columns,
            features=columns,
            outputs=outputs,
            epsilon=epsilon,
            delta=delta,
            is_regression=is_regressor(self),
            method=_validate.one_of("method", self.method, METHODS),
            max_records_per_person=most,
            pure_epsilons=bought.epsilons if bought else (),
        )
        return Terms(facts, choose(facts, {name: getattr(self, name) for name in SETTINGS}), bought)

    def _unbounded(self, columns: int) -> int:
        """How many columns, targets included, have no public bounds."""
        return columns if self.bounds is None else 0

    def _buys_target(self) -> bool:
        """Whether one of them is the target."""
        return False

    def _release(
        self, terms: "Terms", scaled: Callable[[], tuple[np.ndarray, np.ndarray]], assumptions: Sequence[str]
    ) -> None:
        """All that sees records happens here, within the budget; `scaled` buys bounds and keeps to them."""
        _warn_of_searches()
        before = guard.inspect(guard.Setup(terms.chosen.plan, preprocessing=list(_callers("sklearn.pipeline"))))
        learned = [own for own in before if own.name == "fitted-preprocessing"]
        for own in learned:
            warnings.warn(str(own), DpbnnWarning, stacklevel=4)
        seed = None if self.random_state is None else self._seed()
        how: Any = {"seed": seed, "progress": self.verbose}
        how |= {"checkpoint": self.checkpoint, "take_over": self.take_over}
        if any(getattr(self, name, None) is not None for name in GIVEN_AS_PUBLIC):
            assumptions = [
                *assumptions,
                "bounds and classes that were given are public",
            ]
        if self.dataset_size is None:
            assumptions = [*assumptions, "the number of rows is public: it was taken from the data"]
        with spending(terms.chosen.plan):
            is_counted = self.dataset_size is None
            self.release_ = train(*scaled(), terms.facts, terms.chosen, assumptions, is_counted=is_counted, **how)
        settings = guard.with_findings(self.release_.settings, learned)
        self.release_ = replace(self.release_, settings=settings)
        self.settings_, self.guarantee_ = terms.chosen, self.release_.guarantee

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(LARGEST_SEED))

    def _prediction(self, X: Any, num_draws: int | None = None, **more: Any) -> Prediction:
        check_is_fitted(self, "release_")
        values = validate_data(self, X, reset=False, dtype=np.float64)
        draws = self.num_draws if num_draws is None else num_draws
        seed = None if self.random_state is None else self._seed()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DpbnnWarning)  # a posterior may hold fewer draws than are asked for
            return self.release_.predict(
                self.bounds_.scaled(values).astype(np.float32), num_draws=draws, seed=seed, **more
            )


def keep_arguments(estimator: Any, given: dict[str, Any]) -> None:
    """Each argument of ``__init__`` under its own name, as scikit-learn wants it."""
    for name, value in given.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)


def _reference(value: Any) -> Callable[[], Any]:
    """Of what is gone nothing is the same again, None included."""
    if value is None:
        return lambda: None
    reference = weakref.ref(value)
    return lambda: GONE if (own := reference()) is None else own


def as_bounds(name: str, given: Any, columns: int) -> Bounds:
    """A pair for all columns, or a pair for each."""
    try:
        pairs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DpbnnError(f"{name} must be (low, high), or such a pair for each of {columns} columns.") from error
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (columns, 1))
    if pairs.shape != (columns, 2):
        raise DpbnnError(
            f"{name} must be (low, high), or such a pair for each of {columns} columns, got shape {list(pairs.shape)}."
        )
    return Bounds(pairs[:, 0].copy(), pairs[:, 1].copy())


def _callers(module: str) -> Iterator[Any]:
    """Whose methods, of a module of scikit-learn's, have called this fit."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(module):
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _warn_of_searches() -> None:
    """scikit-learn's searches and cross-validations fit again and again on the same people."""
    if any(True for _ in _callers("sklearn.model_selection")):
        warnings.warn(
            "Every fit of a search or cross-validation spends epsilon again, and choosing by its scores spends more: "
            "the guarantee of one fit does not cover it. Use dpbnn.sklearn.DPGridSearch, or public data.",
            DpbnnWarning,
            stacklevel=5,
        )
