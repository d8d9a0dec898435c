"""Whether a data set holds a random generator, whose draws could not be kept secret.

>>> import numpy as np
>>> class Augmented:
...     def __init__(self):
...         self.transforms = [np.random.default_rng(0).normal]
>>> holds_generator(Augmented()), holds_generator([1.0, "text"])
(True, False)
"""

import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from types import BuiltinMethodType, FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor

from dpbnn._internals import global_generators
from dpbnn.models.replica import REFERRING, globals_of, inside

__all__ = ["holds_generator"]

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
PLAIN = (bool, int, float, complex, str, bytes, type(None), Tensor, np.ndarray, ModuleType)
MOST_OF_A_COLLECTION, MOST = 1000, 100_000
"""How many objects are visited: of a list of all records, the first ones show what the others are like."""


def holds_generator(start: object) -> bool:
    """Whether a generator can be reached from this object: by attributes, collections, functions and their globals.

    The generators of the whole process do not count: they are compared while records are read.
    """
    of_the_process = set(map(id, global_generators()))
    seen: set[int] = set()
    waiting: deque[object] = deque([start])
    while waiting and len(seen) < MOST:
        value = waiting.popleft()
        if id(value) in seen or id(value) in of_the_process or isinstance(value, PLAIN):
            continue
        if isinstance(value, GENERATORS):
            return True
        seen.add(id(value))
        waiting.extend(_inside(value))
    return False


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, FunctionType):
        yield from (held for _, held in globals_of(value))
    if isinstance(value, REFERRING):
        yield from (held for _, held in islice(inside(value), MOST_OF_A_COLLECTION))
    elif isinstance(value, BuiltinMethodType):
        yield value.__self__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    else:
        yield from _attributes(value)


def _attributes(value: object) -> Iterator[object]:
    """What an object and its classes hold; classes of Python, torch and NumPy are skipped: everybody shares them."""
    yield from list(getattr(value, "__dict__", {}).values())
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    for kind in kinds:
        for name in getattr(kind, "__slots__", ()):
            with suppress(AttributeError):
                yield getattr(value, name)
        if kind.__module__.partition(".")[0] not in ("builtins", "torch", "numpy"):
            yield from list(vars(kind).values())
