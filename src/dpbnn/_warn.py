"""One way to warn: a `DpbnnWarning` that points at the user's line, unless this thread has muted it.

Python's own `warnings.catch_warnings` changes the filters of the whole process, so that threads would silence or raise
each other's warnings.

    >>> with muted("The chain is"):
    ...     warn("The chain is short.")
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dpbnn.errors import DpbnnWarning

__all__ = ["muted", "warn"]

PACKAGE = os.path.join(os.path.dirname(__file__), "")

_muted: ContextVar[tuple[str, ...]] = ContextVar("dpbnn_muted", default=())


def warn(text: str) -> None:
    """Warn at the line outside of this package that led here."""
    if any(re.match(pattern, text) for pattern in _muted.get()):
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DpbnnWarning, stacklevel=level)


@contextmanager
def muted(*patterns: str) -> Iterator[None]:
    """Inside, this thread drops warnings whose text matches one of these regular expressions from its start."""
    token = _muted.set((*_muted.get(), *patterns))
    try:
        yield
    finally:
        _muted.reset(token)
