"""NumPy's and Python's global generators, which belong to the whole process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["generators_of_the_process", "restoring_generators"]


def generators_of_the_process() -> Any:
    """The states of both generators, to be compared."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that a dataset might use
    words = state["state"]
    return random.getstate(), words["key"].tobytes(), words["pos"], state["has_gauss"], state["gauss"]


@contextmanager
def restoring_generators() -> Iterator[None]:
    """Restore both generators, if something inside has drawn from them."""
    of_python, of_numpy, before = random.getstate(), np.random.get_state(), generators_of_the_process()  # noqa: NPY002
    try:
        yield
    finally:
        if before != generators_of_the_process():
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
