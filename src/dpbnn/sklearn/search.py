"""A search that pays for what it does: for all of its fits, and for choosing between them.

    search = DPGridSearch(DPBayesClassifier(bounds=(0, 100)), {"learning_rate": [0.5, 2.0]}, epsilon=2.0).fit(X, y)
    search.best_params_, search.guarantee_

Every person is put by a coin into one of two parts. On the one all candidates are trained, so that their costs add up
(as Renyi divergences). On the other a noisy maximum (OpenDP) chooses the one that predicts best: private without a
delta, and with all of epsilon, since nobody is in both parts. Scores are not kept: they have no noise on them.
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, check_X_y

from dpbnn import _validate
from dpbnn.preparation import refuse_several_processes
from dpbnn.privacy.budget import composed_epsilon, spending
from dpbnn.privacy.contributions import kept_rows, numbered
from dpbnn.privacy.guarantee import PrivacyGuarantee, rounded_up
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.prose import shown
from dpbnn.privacy.selection import noisy_maximum
from dpbnn.sklearn.estimator import DPBayesEstimator
from dpbnn.types import DpbnnError

__all__ = ["DPGridSearch", "SearchGuarantee"]

ADJACENCY = {"add_or_remove": "is added or removed", "zero_out": "is blanked out, the number of rows being public"}
FINE = 2**20
"""Parts of a score of 1: sums of them are exact, and so is what a row adds."""
PAID_BY_THE_SEARCH = ("epsilon", "delta", "dataset_size", "max_records_per_person")


@dataclass(frozen=True)
class SearchGuarantee:
    """What a search promises; `str()` says it in words."""

    epsilon: float
    delta: float
    candidates: int
    epsilon_of_fits: float
    epsilon_of_choice: float
    unit: str
    adjacency: str
    assumptions: tuple[str, ...]

    def __str__(self) -> str:
        figures = self.epsilon, self.epsilon_of_fits, self.epsilon_of_choice
        whole, fits, choice = (shown(rounded_up(own)) for own in figures)
        return (
            f"This search is differentially private with epsilon = {whole} and delta = {self.delta:g} for "
            f"{self.unit} that {ADJACENCY[self.adjacency]}. It covers all {self.candidates} fits, on one part of the "
            f"data (epsilon {fits}, by Renyi divergences), and the choice between them on the other (epsilon {choice}, "
            f"without delta); nobody is in both. It rests on these assumptions: {'; '.join(self.assumptions)}."
        )


class DPGridSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a grid of settings, within one budget.

    Args:
        estimator: a `DPBayesClassifier` or `DPBayesRegressor`; its own epsilon and delta are not used.
        param_grid: values to try for each parameter, or a list of such grids.
        epsilon: of everything together.
        delta: of everything together.
        holdout: the share of people that are used for choosing.

    After `fit`: `best_estimator_`, `best_params_`, `guarantee_`. There is no second fit on all of the data: it would
    have to be paid for too.
    """

    def __init__(
        self, estimator: Any, param_grid: Any, *, epsilon: float = 1.0, delta: float = 1e-5, holdout: float = 0.2
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.epsilon = epsilon
        self.delta = delta
        self.holdout = holdout

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train all candidates, and choose; `groups` names the person of each row."""
        refuse_several_processes()
        candidates = self._candidates()
        X, y = check_X_y(X, y, dtype=np.float64, y_numeric=is_regressor(self.estimator))
        limit = _validate.whole_number("max_records_per_person", self.estimator.max_records_per_person)
        if groups is not None:
            if len(groups) != len(X):
                raise DpbnnError("groups must be one name for each row, got more or fewer.")
            people = numbered(groups)
            kept = kept_rows(people, limit)
            X, y, groups = X[kept], y[kept], people[kept]
        elif limit > 1:
            raise DpbnnError("groups must say whose rows they are where a person has several; pass fit(X, y, groups).")
        share = _validate.fraction("holdout", self.holdout)
        epsilon, delta = _validate.positive("epsilon", self.epsilon), _validate.fraction("delta", self.delta)
        own = self.estimator
        rows = round((1 - share) * (len(X) if own.dataset_size is None else own.dataset_size))
        outputs = 1 if is_regressor(own) else len(np.unique(y) if own.classes is None else np.unique(own.classes))
        each, plans = self._within(candidates, epsilon, delta, (rows, X.shape[1], outputs))
        own._warn_of_what_is_taken(stacklevel=3)
        aside = _people_aside(len(X), share, groups)
        with spending(*plans, epsilon_of_others=epsilon):
            fitted = [
                clone(own)
                .set_params(**candidate, epsilon=each, delta=delta, dataset_size=rows, **_public(own, y))
                .fit(X[~aside], y[~aside], *(() if groups is None else (groups[~aside],)))
                for candidate in candidates
            ]
            if [one.settings_.plan for one in fitted] != plans:
                raise RuntimeError("a fit did not keep to the plan that was charged; this is a bug, use none of them.")
            scores = [_score(one, X[aside], y[aside]) for one in fitted]
            best = noisy_maximum(scores, epsilon / limit)
        self.best_estimator_, self.best_params_ = fitted[best], dict(candidates[best])
        guarantee = _of_the_search(fitted[best].guarantee_, epsilon, own)
        fitted[best].release_ = replace(fitted[best].release_, guarantee=guarantee)
        fitted[best].guarantee_ = guarantee
        self.guarantee_ = SearchGuarantee(
            epsilon=epsilon,
            delta=delta,
            candidates=len(candidates),
            epsilon_of_fits=composed_epsilon(plans, delta),
            epsilon_of_choice=epsilon,
            unit=guarantee.unit,
            adjacency=guarantee.adjacency,
            assumptions=guarantee.assumptions,
        )
        return self

    def _candidates(self) -> list[dict[str, Any]]:
        if not isinstance(self.estimator, DPBayesEstimator):
            _validate.refuse("estimator", "a DPBayesClassifier or DPBayesRegressor", self.estimator)
        candidates = list(ParameterGrid(self.param_grid))
        for name in PAID_BY_THE_SEARCH:
            if any(name in candidate for candidate in candidates):
                raise DpbnnError(f"param_grid must not vary {name}, which the search decides; give it to the search.")
        return candidates

    def _within(
        self, candidates: Sequence[Mapping[str, Any]], epsilon: float, delta: float, shape: tuple[int, int, int]
    ) -> tuple[float, list[PrivacyPlan]]:
        """The largest epsilon of each fit with which all of them keep the budget, to a few thousandths."""

        def plans_at(each: float) -> list[PrivacyPlan]:
            shared: Any = {"epsilon": each, "delta": delta, "dataset_size": shape[0]}
            fits = [clone(self.estimator).set_params(**own, **shared) for own in candidates]
            return [fit._terms(*shape).chosen.plan for fit in fits]

        each = epsilon / math.sqrt(len(candidates))
        plans = plans_at(each)
        while (spent := composed_epsilon(plans, delta)) > epsilon:
            each *= min(0.99, epsilon / spent)
            plans = plans_at(each)
        return each, plans

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """As the best candidate."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def predict(self, X: Any, **how: Any) -> Any:
        """As the best candidate."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X, **how)

    def score(self, X: Any, y: Any) -> float:
        """As the best candidate."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))


def _of_the_search(guarantee: PrivacyGuarantee, epsilon: float, estimator: Any) -> PrivacyGuarantee:
    """What the chosen one costs: all that was done to find it."""
    searched = [text for text in guarantee.assumptions if not text.startswith("a search over settings")]
    labels = ["the class labels are public: they were taken from the data"]
    taken = labels if not is_regressor(estimator) and estimator.classes is None else []
    is_counted = estimator.dataset_size is None
    if is_counted:
        taken = [*taken, "the number of rows is public: it was taken from the data"]
    return replace(
        guarantee,
        epsilon=epsilon,
        adjacency="zero_out" if is_counted else guarantee.adjacency,
        accountant="rdp",
        remark="of the whole search",
        epsilon_by_accountant={"rdp": epsilon},
        epsilon_replace_one=math.inf,
        released="all candidates of a search, the choice between them, and everything computed from them",
        assumptions=(*searched, *taken, "the grid of candidates does not depend on the private data"),
    )


def _public(estimator: Any, y: np.ndarray) -> dict[str, Any]:
    """Labels that one part of the rows may lack."""
    return {"classes": np.unique(y)} if not is_regressor(estimator) and estimator.classes is None else {}


def _people_aside(rows: int, share: float, groups: Any) -> np.ndarray:
    """Whole people, each by a coin of the operating system's: who is where depends on nobody else."""
    generator = np.random.default_rng()
    if groups is None:
        return generator.random(rows) < share
    return (generator.random(groups.max() + 1) < share)[groups]


def _score(fitted: Any, X: np.ndarray, y: np.ndarray) -> float:
    """From 0 to 1 for each row, whatever the others are: right labels, or closeness in units of the targets' range.

    Predictions draw secretly here, and never from `random_state`: dropout masks are drawn by position, and to somebody
    who knows them, one row more would change the scores of all that follow.
    """
    if len(X) == 0:
        return 0.0
    secretly = copy(fitted)
    secretly.random_state = None
    found = secretly.predict(X)
    if found.shape != y.shape:
        raise RuntimeError(f"scores need one prediction for each row, got {found.shape} for {y.shape}; this is a bug.")
    if not is_regressor(fitted):
        return float((found == y).sum())
    low, high = fitted.target_bounds_.low[0], fitted.target_bounds_.high[0]
    away = np.nan_to_num(np.abs(found - y) / (high - low), nan=1.0)
    return float(np.floor((1 - np.clip(away, 0, 1)) * FINE).sum() / FINE)
