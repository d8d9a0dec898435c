"""A search that pays for what it does: for all of its fits, and for choosing between them.

    search = DPGridSearch(DPBayesClassifier(bounds=(0, 100)), {"learning_rate": [0.5, 2.0]}, epsilon=2.0).fit(X, y)
    search.best_params_, search.guarantee_

Every person is put by a coin into one of two parts. On the one all candidates are trained, so that their costs add up
(as Renyi divergences). On the other a noisy maximum (OpenDP) chooses the one that predicts best: private without a
delta, and with all of epsilon, since nobody is in both parts. Scores are not kept: they have no noise on them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, check_X_y

from dpbnn import _validate
from dpbnn.errors import DpbnnError
from dpbnn.privacy.budget import composed_epsilon
from dpbnn.privacy.guarantee import rounded_up
from dpbnn.privacy.ledger import SearchLedger
from dpbnn.privacy.prose import shown
from dpbnn.privacy.queries import selection
from dpbnn.privacy.queries.contributions import numbered
from dpbnn.sklearn.estimator import Candidate, DPBayesEstimator
from dpbnn.tables.terms import FitFolder, Terms
from dpbnn.training.prepare import refuse_several_processes

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
        whole, fits, choice = (shown(rounded_up(figure)) for figure in figures)
        return (
            f"This search is differentially private with epsilon = {whole} and delta = {shown(self.delta)} for "
            f"{self.unit} that {ADJACENCY[self.adjacency]}. It covers all {self.candidates} fits, on one part of the "
            f"data (epsilon {fits}, by Renyi divergences), and the choice between them on the other (epsilon {choice}, "
            f"without delta); nobody is in both. It rests on these assumptions: {'; '.join(self.assumptions)}."
        )


class DPGridSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a grid of settings, within one budget.

    Args:
        estimator: a `DPBayesClassifier` or `DPBayesRegressor`; its epsilon and delta are not used.
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
        model, settings = self.estimator, self._settings()
        model._refuse_elsewhere()
        X, y, people = self._kept(X, y, groups)
        epsilon, delta = _validate.positive("epsilon", self.epsilon), _validate.fraction("delta", self.delta)
        share = _validate.fraction("holdout", self.holdout)
        labels = None if is_regressor(model) else np.unique(y if model.classes is None else np.asarray(model.classes))
        size = round((1 - share) * (len(X) if model.dataset_size is None else model.dataset_size))
        fits = self._within(settings, epsilon, delta, size, X.shape[1], labels)
        chosen = [terms.chosen for _, terms in fits]
        ledger = SearchLedger(
            [one.plan for one in chosen], [one.purchases for one in chosen], epsilon=epsilon, delta=delta
        )
        model._spending().add(epsilon, delta)
        model._warn_of_what_is_taken()
        aside = _people_aside(len(X), share, people)
        others = X[~aside], y[~aside], None if people is None else people[~aside]
        candidates = [
            fit._trained(fit._rows(*others), terms, paid, FitFolder())
            for (fit, terms), paid in zip(fits, ledger.ledgers, strict=True)
        ]
        scores = [_score(candidate, X[aside], y[aside]) for candidate in candidates]
        place = ledger.choose(lambda permit: selection.noisy_maximum(scores, permit))
        best = fits[place][0]
        best._become(candidates[place].released(model._circumstances(model._assumed(labels))))
        of_best = {name: getattr(best.guarantee_, name) for name in ("unit", "adjacency", "assumptions")}
        guarantee = SearchGuarantee(**asdict(ledger.cost), **of_best)
        self.__dict__.update(best_estimator_=best, best_params_=dict(settings[place]), guarantee_=guarantee)
        return self

    def _kept(self, X: Any, y: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Rows, at most so many of each person, and whose they are."""
        X, y = check_X_y(X, y, dtype=np.float64, y_numeric=is_regressor(self.estimator))
        limit = _validate.whole_number("max_records_per_person", self.estimator.max_records_per_person)
        if groups is None and limit > 1:
            raise DpbnnError("groups must say whose rows they are where a person has several; pass fit(X, y, groups).")
        kept = self.estimator._kept(groups, len(X))
        return X[kept], y[kept], None if groups is None else numbered(groups)[kept]

    def _settings(self) -> list[dict[str, Any]]:
        if not isinstance(self.estimator, DPBayesEstimator):
            _validate.refuse("estimator", "a DPBayesClassifier or DPBayesRegressor", self.estimator)
        settings = list(ParameterGrid(self.param_grid))
        for name in PAID_BY_THE_SEARCH:
            if any(name in one for one in settings):
                raise DpbnnError(
                    f"param_grid must not vary {name}, which is one for the whole search; set it once, on the search "
                    "or its estimator."
                )
        if self.estimator.checkpoint is not None or any("checkpoint" in one for one in settings):
            raise DpbnnError(
                "checkpoint must be None in a search: an interrupted one cannot go on, as who is in which part would "
                "be drawn anew; leave it out."
            )
        return settings

    def _within(
        self,
        settings: Sequence[Mapping[str, Any]],
        epsilon: float,
        delta: float,
        size: int,
        columns: int,
        labels: np.ndarray | None,
    ) -> list[tuple[DPBayesEstimator, Terms]]:
        """Fits with the largest epsilon each at which all of them keep the budget, to a few thousandths.

        All labels are given to each, as one part of the rows may lack some.
        """
        shared: Any = {"delta": delta, "dataset_size": size} | ({} if labels is None else {"classes": labels})
        classes = None if labels is None else len(labels)

        def fits_at(each: float) -> list[tuple[DPBayesEstimator, Terms]]:
            fits = [clone(self.estimator).set_params(**one, **shared, epsilon=each) for one in settings]
            return [(fit, fit._terms(size, columns, classes)) for fit in fits]

        each = epsilon / math.sqrt(len(settings))
        fits = fits_at(each)
        while (spent := composed_epsilon([terms.chosen.plan for _, terms in fits], delta)) > epsilon:
            each *= min(0.99, epsilon / spent)
            fits = fits_at(each)
        return fits

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """What the best candidate predicts."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def predict(self, X: Any, **how: Any) -> Any:
        """What the best candidate predicts."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X, **how)

    def score(self, X: Any, y: Any) -> float:
        """The best candidate's score."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))


def _people_aside(rows: int, share: float, groups: Any) -> np.ndarray:
    """Whole people, each by a coin of the operating system's: who is where depends on nobody else."""
    generator = np.random.default_rng()
    if groups is None:
        return generator.random(rows) < share
    return (generator.random(groups.max() + 1) < share)[groups]


def _score(candidate: Candidate, X: np.ndarray, y: np.ndarray) -> float:
    """From 0 to 1 for each row, whatever the others are: right labels, or closeness in units of the targets' range.

    Predictions draw secretly here, and never from `random_state`: dropout masks are drawn by position, and to somebody
    who knows them, one row more would change the scores of all that follow.
    """
    if len(X) == 0:
        return 0.0
    answers = candidate.answers(X)
    if answers.shape != y.shape:
        raise RuntimeError(f"scores need one prediction for each row, got {answers.shape} for {y.shape}; a bug.")
    if not is_regressor(candidate.estimator):
        return float((answers == y).sum())
    bounds = candidate.estimator.target_bounds_
    away = np.nan_to_num(np.abs(answers - y) / (bounds.high[0] - bounds.low[0]), nan=1.0)
    return float(np.floor((1 - np.clip(away, 0, 1)) * FINE).sum() / FINE)
