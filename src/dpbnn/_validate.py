"""One wording for every argument error: what was expected, what came.

Each function returns the checked value, so that a check reads as an assignment:

    >>> positive("clip_norm", 1.5)
    1.5
    >>> positive("clip_norm", -1.0)
    Traceback (most recent call last):
    ...
    dpbnn.errors.DpbnnError: clip_norm must be > 0, got -1.0.
"""

import math
import numbers
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from dpbnn.errors import DpbnnError

__all__ = ["finite", "fraction", "non_negative", "one_of", "positive", "refuse", "whole_number"]


def refuse(name: str, expected: str, value: object) -> NoReturn:
    """Raise the one argument error: ``name must be expected, got value.``"""
    raise DpbnnError(f"{name} must be {expected}, got {_shown(value)}.")


def _shown(value: object) -> str:
    """On one line: a class, or what would fill the screen, by its name."""
    if isinstance(value, type):
        return f"the class {value.__name__} (write {value.__name__}(...))"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def finite(name: str, value: object) -> float:
    """A finite real number, as a float."""
    with suppress(OverflowError):  # a whole number beyond float64
        if not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value):
            return float(value)
    refuse(name, "a finite number", value)


def positive(name: str, value: object) -> float:
    """A finite number above zero."""
    number = finite(name, value)
    return number if number > 0 else refuse(name, "> 0", value)


def non_negative(name: str, value: object) -> float:
    """A finite number of at least zero."""
    number = finite(name, value)
    return number if number >= 0 else refuse(name, ">= 0", value)


def fraction(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    number = finite(name, value)
    return number if 0 < number < 1 else refuse(name, "> 0 and < 1", value)


def whole_number(name: str, value: object, at_least: int = 1) -> int:
    """A whole number, as an int; floats and booleans are refused rather than rounded."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        refuse(name, "a whole number", value)
    return int(value) if int(value) >= at_least else refuse(name, f">= {at_least}", value)


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """One of the registered names."""
    known = list(choices)
    return str(value) if value in known else refuse(name, "one of " + ", ".join(map(repr, known)), value)
