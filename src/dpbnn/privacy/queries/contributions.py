"""Several rows of one person: at most a given number is kept, by a rule that does not look at their values.

>>> kept_rows(["a", "b", "a", "a", "b"], most=2)
array([0, 1, 2, 4])
"""

from typing import Any

import numpy as np

from dpbnn import _validate
from dpbnn.errors import DpbnnError

__all__ = ["kept_rows", "numbered"]


def numbered(people: Any) -> np.ndarray:
    """A number for each row's person, the same for the same name.

    Guarantees:
        Whether two rows are one person's does not depend on anybody else's name.
    """
    if getattr(people, "ndim", 1) != 1:
        raise DpbnnError(f"groups must be one name for each row, got {people.ndim} dimensions.")
    names = people.tolist() if hasattr(people, "tolist") else list(people)
    if any(map(_is_missing, names)):
        raise DpbnnError("groups must name the person of every row, got missing names; give each row one.")
    numbers: dict[Any, int] = {}
    try:
        return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    except TypeError as error:  # a name without a hash
        raise DpbnnError("groups must be texts or numbers, one for each row.") from error


def _is_missing(name: Any) -> bool:
    """Whether a name is None, NaN, NaT, or pandas' NA, which cannot be compared."""
    try:
        return name is None or bool(name != name)
    except TypeError:
        return True


def kept_rows(people: Any, most: int) -> np.ndarray:
    """The first `most` rows of each person, in the order in which they came.

    Guarantees:
        Which of a person's rows are kept does not depend on anybody else's.
    """
    person = numbered(people)
    order = np.argsort(person, kind="stable")
    counts = np.bincount(person)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[np.arange(len(person)) - first < _validate.whole_number("max_records_per_person", most)])
