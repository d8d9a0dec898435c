"""What an estimator remembers between fits: what it and its clones spend, where it was sent from, what it saw last."""

import os
import pickle
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Any, Self

from dpbnn._warn import warn
from dpbnn.privacy.budget import ancestor, budget_process, refuse_elsewhere

__all__ = ["Spending", "WithHistory"]

SPENT, SENT_FROM, FITTED_ON = "_spent", "_sent_from", "_fitted_on"
"""Where an estimator keeps what its clones share, the process whose budget was open when it was sent, and the arrays
and settings of its last fit."""
NOTHING: tuple[tuple[Any, ...], bytes] = ((), b"")
GONE = object()
NOT_COVERED = (
    "which the guarantee of one fit does not say, and choosing by scores on private rows spends more. Search with "
    "dpbnn.sklearn.DPGridSearch, put several fits under one dpbnn.BudgetAccountant, or use public data."
)


class Spending:
    """How often an estimator, its clones and its copies were fitted, and what these fits spend together.

    All of them share one object, which is how a search, a cross-validation or an ensemble of scikit-learn is
    noticed: each fits clones. A process that was sent a copy cannot know what others spend, so it warns at every fit.
    """

    def __init__(self, process: int | None = None, fits: int = 0, epsilon: float = 0.0, delta: float = 0.0) -> None:
        self._process = os.getpid() if process is None else process
        self.fits, self.epsilon, self.delta = fits, epsilon, delta
        self._lock = Lock()

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __repr__(self) -> str:
        return f"Spending(fits={self.fits}, epsilon={self.epsilon}, delta={self.delta})"

    def __reduce__(self) -> Any:
        return type(self), (self._process, self.fits, self.epsilon, self.delta)

    def add(self, epsilon: float, delta: float) -> None:
        """Count a fit, and warn of the second, the fourth, the eighth: a large search hears how it grows."""
        with self._lock:
            self.fits, self.epsilon, self.delta = self.fits + 1, self.epsilon + epsilon, self.delta + delta
            fits, spent = self.fits, f"epsilon = {self.epsilon:.4g} and delta = {self.delta:.4g}"
        if os.getpid() != self._process:
            warn(
                "This fit runs in another process than its estimator was made in, as in a search or cross-validation "
                f"with n_jobs: each of them spends epsilon again, {NOT_COVERED}"
            )
        elif fits > 1 and fits.bit_count() == 1:
            warn(
                f"Fit {fits} of one estimator and its clones, as in a search or cross-validation: on the same people "
                f"they spend up to {spent} together, {NOT_COVERED}"
            )


class WithHistory:
    """For estimators: clones, copies and pickles know what came before, and keep no record alive."""

    def __getstate__(self) -> Any:
        """Without references to records; with where its budget is, if it is sent to another process to be fitted."""
        self._spending()
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        kept = {name: value for name, value in state.items() if name != FITTED_ON}
        return kept | {SENT_FROM: budget_process() or kept.get(SENT_FROM)}

    def __setstate__(self, state: Any) -> None:
        """Remember where its budget is, here and nowhere else: what others bring does not make it forget."""
        sent_from = ancestor(state.pop(SENT_FROM, None))
        super().__setstate__(state)  # type: ignore[misc]
        self.__dict__.update(_sent(sent_from))

    def __sklearn_clone__(self) -> Any:
        """A clone has the budget of its model (workers fit clones of what they were sent), and adds to its spending."""
        made = super().__sklearn_clone__()  # type: ignore[misc]
        made.__dict__.update({SPENT: self._spending(), **_sent(vars(self).get(SENT_FROM))})
        return made

    def _spending(self) -> Spending:
        return self.__dict__.setdefault(SPENT, Spending())

    def _refuse_elsewhere(self) -> None:
        """Before anything else is done with rows: this may have been sent here under a budget."""
        refuse_elsewhere(vars(self).get(SENT_FROM))

    def _is_repeated(self, settings: Any, *data: Any) -> bool:
        """Whether this very fit, of the same arrays with the same settings, was the last one: nothing is spent twice.

        It is the arrays' identity that counts, which is the program's doing, and never what they hold.
        """
        last, known = vars(self).get(FITTED_ON, NOTHING)
        same = len(last) == len(data) and all(ref() is array for ref, array in zip(last, data, strict=True))
        if not same or known != pickle.dumps(settings):
            return False
        warn(
            "This estimator has been fitted on these very arrays with these settings: its release stays as it is, and "
            "nothing is spent. If they were changed in place, pass copies."
        )
        return True

    def _remembered(self, settings: Any, *data: Any) -> dict[str, Any]:
        """What `_is_repeated` compares: weak references, so that no record stays alive with the estimator."""
        try:
            return {FITTED_ON: (tuple(_reference(array) for array in data), pickle.dumps(settings))}
        except (TypeError, AttributeError, pickle.PicklingError):  # a list, which takes none; settings of odd kinds
            return {FITTED_ON: NOTHING}


def _sent(process: int | None) -> dict[str, int]:
    return {} if process is None else {SENT_FROM: process}


def _reference(value: Any) -> Callable[[], Any]:
    """A weak reference that, once its array is gone, gives what is the same as nothing else."""
    if value is None:
        return lambda: None
    reference = weakref.ref(value)
    return lambda: GONE if (array := reference()) is None else array
