"""What the classifier and the regressor share."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.errors import DpbnnError
from dpbnn.prediction import Prediction
from dpbnn.privacy.guarantee import Circumstances
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.queries.bounds import Bounds, BoundsPurchase
from dpbnn.privacy.queries.contributions import kept_rows
from dpbnn.release.draft import Draft
from dpbnn.sklearn.fitting import PrivateRows, as_bounds, fit_folder
from dpbnn.sklearn.history import WithHistory
from dpbnn.tables.settings import Chosen, Facts
from dpbnn.tables.terms import FitFolder, Terms, circumstances, terms_for
from dpbnn.tables.training import train
from dpbnn.training.prepare import refuse_several_processes

__all__ = ["TARGET", "Candidate", "DPBayesEstimator", "arguments"]

LARGEST_SEED = 2**31 - 1
GIVEN_AS_PUBLIC = ("bounds", "target_bounds", "classes")
TAKEN_FOR_PUBLIC = {
    "classes": ("the class labels", "classes=[...]"),
    "dataset_size": ("the number of rows", "dataset_size=n"),
}
"""What is taken from the data where it is not given: its name in words, and how to give it."""
EARLIER_STEPS = "what was done to the rows before, as by earlier steps of a pipeline, learned nothing from private rows"
"""An assumption, as an estimator does not see those steps (`check_pipeline`)."""
SETTINGS = ("hidden", "learning_rate", "clip_norm", "batch_size", "epochs", "prior_scale", "dropout")
"""What is chosen where it is not given."""
TARGET = "the target"
_warned_of: set[str] = set()
"""Warnings that were given: Python empties its list of them whenever somebody changes filters."""


@dataclass(eq=False, repr=False)
class DPBayesEstimator(WithHistory, BaseEstimator):  # type: ignore[misc]
    """A network on columns that are clipped to bounds and scaled to -1 to 1.

    Args:
        method: a name in `dpbnn.methods.METHODS`, such as "sgld".
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
        dropout: the share of units dropped, for a method that needs dropout, such as "mc_dropout".
        num_draws: draws of the weights that predictions average.
        dataset_size: the public number of rows; None counts them, and takes that for public.
        max_records_per_person: how many rows one person may have; with `groups`, further ones are dropped.
        checkpoint: a folder from which an interrupted fit continues.
        take_over: continue also a checkpoint of another host, whose worker is gone or must stop.
        random_state: for the first weights and the draws of predictions; never for sampling or noise.
        verbose: whether to show a progress bar.
    """

    method: str = "sgld"
    epsilon: float = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    bounds: Any = None
    bounds_share: float = 0.5
    hidden: Any = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    batch_size: int | None = None
    epochs: float | None = None
    prior_scale: float | None = None
    dropout: float | None = None
    num_draws: int = 100
    dataset_size: int | None = None
    max_records_per_person: int = 1
    checkpoint: Any = None
    take_over: bool = False
    random_state: Any = None
    verbose: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # sampling and noise take no seed
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on private rows; `groups` names the person of each row.

        The same arrays with the same settings again are not trained on, and not paid for, a second time.

        Guarantees:
            A fit that fails leaves the estimator as it was.
            Predictions in other threads are those of one fit or of another, never of both.
        """
        refuse_several_processes()
        self._refuse_elsewhere()
        data, fit = (X, y, groups), self._snapshot()
        rows = fit._rows(X, y, groups)
        if self._is_repeated(self.get_params(), *data):
            return self
        self._warn_of_what_is_taken()
        if groups is not None and fit.max_records_per_person == 1:
            warn("groups are given, and one row of each person is used; max_records_per_person=k uses up to k.")
        with fit_folder(fit.checkpoint, fit.take_over) as folder:
            terms = fit._terms(len(rows.X), rows.X.shape[1], rows.classes)
            ledger = terms.ledger(folder.ledger)
            self._spending().add(terms.facts.epsilon, terms.facts.delta)
            candidate = fit._trained(rows, terms, ledger, folder)
            fitted = candidate.released(fit._circumstances(rows.assumptions))
            folder.check()
            self._become(fitted | fit._remembered(fit.get_params(), *data))
        return self

    def _snapshot(self) -> Self:
        """A copy that no other thread changes; what it refers to is shared."""
        copied = object.__new__(type(self))
        copied.__dict__ = vars(self).copy()
        return copied

    def _become(self, fitted: Mapping[str, Any]) -> None:
        """Take over all attributes of a fit at once, and drop those that only an earlier fit had."""
        self.__dict__.update(fitted)
        for name in list(vars(self)):
            if name.endswith("_") and name not in fitted:
                self.__dict__.pop(name, None)

    def _warn_of_what_is_taken(self) -> None:
        """Warn once for each kind of estimator, without a word of what the data hold."""
        given = self.get_params()
        missing = [words for name, words in TAKEN_FOR_PUBLIC.items() if name in given and given[name] is None]
        if not missing:
            return
        what, cure = (" and ".join(words) for words in zip(*missing, strict=True))
        _warn_once(
            f"{type(self).__name__} takes {what} from the data, without noise, and its guarantee holds only where that "
            f"is public; give {cure}, known from elsewhere."
        )

    def _kept(self, groups: Any, rows: int) -> Any:
        """The places of at most `max_records_per_person` rows of each person."""
        if groups is None:
            return slice(None)
        if len(groups) != rows:
            raise DpbnnError("groups must be one name for each row, got more or fewer.")
        return kept_rows(groups, self.max_records_per_person)

    def _terms(self, rows: int, columns: int, classes: int | None) -> Terms:
        """Settled by public numbers, before any record is looked at."""
        facts = Facts(
            rows=rows if self.dataset_size is None else _validate.whole_number("dataset_size", self.dataset_size),
            columns=columns,
            classes=classes,
            epsilon=self.epsilon,
            delta=self.delta,
            method=self.method,
            max_records_per_person=self.max_records_per_person,
        )
        unbounded = self._unbounded(columns)
        return terms_for(
            facts,
            {name: getattr(self, name) for name in SETTINGS},
            unbounded,
            buys_target=TARGET in unbounded,
            bounds_share=_validate.fraction("bounds_share", self.bounds_share),
        )

    def _unbounded(self, columns: int) -> list[str]:
        """Names of columns whose bounds are bought; the target comes last."""
        return [f"column {place}" for place in range(columns)] if self.bounds is None else []

    def _rows(self, X: Any, y: Any, groups: Any) -> PrivateRows:
        """Check the rows, and keep at most `max_records_per_person` of each person."""
        raise NotImplementedError

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Targets as the network takes them, once bounds are known."""
        raise NotImplementedError

    def _answers(self, prediction: Prediction) -> np.ndarray:
        """What `predict` says."""
        raise NotImplementedError

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        """Columns as the network takes them, once bounds are known."""
        return self.bounds_.scaled(X).astype(np.float32)

    def _public_bounds(self, columns: int) -> dict[str, Bounds]:
        """Bounds that were given, by the name of their attribute."""
        return {} if self.bounds is None else {"bounds_": as_bounds("bounds", self.bounds, columns)}

    def _bought_bounds(self, rows: PrivateRows, bought: BoundsPurchase, ledger: Ledger) -> dict[str, Bounds]:
        """Bounds that were not given, by the name of their attribute."""
        return {"bounds_": bought.bounds_of(rows.X, ledger)}

    def _assumed(self, classes: np.ndarray | None) -> tuple[str, ...]:
        """What is taken from the data and counts as public."""
        return ()

    def _trained(self, rows: PrivateRows, terms: Terms, ledger: Ledger, folder: FitFolder) -> "Candidate":
        """Buy bounds and train: all of a fit that sees records, paid for by the ledger."""
        seed = None if self.random_state is None else self._seed()
        bounds = {} if terms.bounds is None else self._bought_bounds(rows, terms.bounds, ledger)
        fitted = self._snapshot()
        fitted.__dict__.update({**rows.public, **bounds})
        X, y = fitted._inputs(rows.X), fitted._targets(rows.y)
        draft = train(X, y, terms, ledger, seed=seed, folder=folder, progress=self.verbose)
        return Candidate(fitted, draft, terms.chosen)

    def _circumstances(self, assumptions: Sequence[str] = ()) -> Circumstances:
        is_given = any(getattr(self, name, None) is not None for name in GIVEN_AS_PUBLIC)
        given = ["bounds and classes that were given are public"] if is_given else []
        counted = "the number of rows is public: it was taken from the data"
        return circumstances([*assumptions, *given, EARLIER_STEPS], counted if self.dataset_size is None else None)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(LARGEST_SEED))

    def _prediction(self, X: Any, num_draws: int | None = None, **more: Any) -> Prediction:
        """Ask this of a snapshot alone: meanwhile another thread may fit the estimator."""
        check_is_fitted(self, "release_")
        values = validate_data(self, X, reset=False, dtype=np.float64)
        draws = self.num_draws if num_draws is None else num_draws
        seed = None if self.random_state is None else self._seed()
        return self.release_.predict(self._inputs(values), num_draws=draws, seed=seed, **more)


@dataclass(frozen=True)
class Candidate:
    """An estimator whose network is trained and paid for, and not released yet."""

    estimator: DPBayesEstimator
    draft: Draft
    settings: Chosen

    def answers(self, X: np.ndarray) -> np.ndarray:
        """Predict as `predict` will, by draws that nobody can know."""
        estimator = self.estimator
        return estimator._answers(self.draft.predict(estimator._inputs(X), estimator.num_draws))

    def released(self, circumstances: Circumstances) -> dict[str, Any]:
        """All attributes of the fitted estimator, if the ledger is in order."""
        release = self.draft.release(circumstances)
        fitted = {name: value for name, value in vars(self.estimator).items() if name.endswith("_")}
        return fitted | {"release_": release, "guarantee_": release.guarantee, "settings_": self.settings}


def arguments(further: str) -> str:
    """All arguments of an estimator, for its docstring: those of `DPBayesEstimator` and one of its own."""
    _, shared = (DPBayesEstimator.__doc__ or "\n\n").split("\n\n", 1)
    return "\n" + shared.replace("        bounds_share:", f"        {further}\n        bounds_share:")


def _warn_once(text: str) -> None:
    """Warn, unless this process has warned of it already."""
    if text not in _warned_of:
        _warned_of.add(text)
        warn(text)
