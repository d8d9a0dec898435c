"""Who has called a fit: a pipeline that learns from the rows before it does, or a search that fits again and again."""

import sys
from collections.abc import Iterator
from typing import Any

from dpbnn import lint
from dpbnn._warn import warn
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["learned_before", "warn_of_searches"]


def learned_before(plan: PrivacyPlan) -> list[lint.Finding]:
    """What steps of a pipeline before this fit have learned from the rows; warns of it."""
    found = lint.inspect(lint.Setup(plan, preprocessing=list(_callers("sklearn.pipeline"))))
    learned = [own for own in found if own.name == "fitted-preprocessing"]
    for own in learned:
        warn(str(own))
    return learned


def warn_of_searches() -> None:
    """scikit-learn's searches and cross-validations fit again and again on the same people."""
    if any(True for _ in _callers("sklearn.model_selection")):
        warn(
            "Every fit of a search or cross-validation spends epsilon again, and choosing by its scores spends more: "
            "the guarantee of one fit does not cover it. Use dpbnn.sklearn.DPGridSearch, or public data."
        )


def _callers(module: str) -> Iterator[Any]:
    """Whose methods, of a module of scikit-learn's, have called this fit."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(module):
            yield frame.f_locals.get("self")
        frame = frame.f_back
