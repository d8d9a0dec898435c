"""Several rows of one person: at most so many are kept, by a rule that does not look at their values.

>>> kept_rows(np.array(["a", "b", "a", "a", "b"]), most=2)
array([0, 1, 2, 4])
"""

from typing import Any

import numpy as np

from dpbnn import _validate
from dpbnn.types import DpbnnError

__all__ = ["kept_rows"]


def kept_rows(people: Any, most: int) -> np.ndarray:
    """The first `most` rows of each person, in the order in which they came.

    Guarantees:
        which of a person's rows are kept does not depend on anybody else's
    """
    names = np.asarray(people)
    if names.ndim != 1:
        _validate.refuse("groups", "one name for each row", names.shape)
    if names.dtype.kind in "fO" and any(name is None or name != name for name in names.tolist()):
        raise DpbnnError("groups must name the person of every row, got missing names; give each row one.")
    _, person = np.unique(names, return_inverse=True)
    order = np.argsort(person, kind="stable")
    counts = np.bincount(person)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[np.arange(len(names)) - first < _validate.whole_number("max_records_per_person", most)])
