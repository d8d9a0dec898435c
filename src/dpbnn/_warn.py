"""One way to warn: a warning that points at the user's line, unless this thread has muted it.

Python's own `warnings.catch_warnings` changes the filters of the whole process, so that threads would silence or raise
each other's warnings.

    >>> with muted("The chain is"):
    ...     warn("The chain is short.")
"""

import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dpbnn.errors import DpbnnWarning

__all__ = ["muted", "warn", "warn_renamed"]

PACKAGE = os.path.join(os.path.dirname(__file__), "")
IMPORTLIB = os.path.join(os.path.dirname(importlib.__file__), "")

_muted: ContextVar[tuple[str, ...]] = ContextVar("dpbnn_muted", default=())


def warn(text: str, category: type[Warning] = DpbnnWarning) -> None:
    """Warn at the line outside of this package that led here."""
    if any(re.match(pattern, text) for pattern in _muted.get()):
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame = frame.f_back
    seen = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__")
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, name, seen)


def warn_renamed(old: str, new: str, gone_in: str = "0.3") -> None:
    """Warn of an old public name, which works for one more minor version."""
    warn(f"{old} is now {new}; the old name goes in dpbnn {gone_in}.", FutureWarning)


def _is_inside(path: str) -> bool:
    """Whether code belongs to the package, or to Python's own way of importing it."""
    return path.startswith((PACKAGE, IMPORTLIB, "<frozen importlib"))


@contextmanager
def muted(*patterns: str) -> Iterator[None]:
    """Inside, this thread drops warnings whose text matches one of these regular expressions from its start."""
    token = _muted.set((*_muted.get(), *patterns))
    try:
        yield
    finally:
        _muted.reset(token)
