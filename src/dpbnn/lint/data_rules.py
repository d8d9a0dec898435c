"""Lint rules about the records: whose they are, what was learned from them before, and which are called public."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product, starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpbnn.lint.finding import Subject, rule
from dpbnn.privacy.queries.contributions import numbered

HARMLESS = (
    "FunctionTransformer", "Normalizer", "Binarizer", "PolynomialFeatures", "FeatureHasher", "HashingVectorizer",
)  # fmt: skip
"""Transformers of scikit-learn that learn nothing from the rows."""
WITH_PARTS = ("steps", "transformers", "transformer_list")
"""Attributes of pipelines, column transformers and unions that list their parts, each with its name before it."""
WITH_ONE_PART = ("remainder", "transformer", "regressor", "estimator")
"""Attributes of column transformers, and of what wraps another estimator, that hold one part."""
IDENTIFIERS = ("id", "uid", "pid", "mrn", "ssn", "nhs", "email", "name", "account")
PEOPLE = (
    "patient", "person", "customer", "client", "user", "subject", "participant", "household", "member", "employee",
)  # fmt: skip
"""How names of columns begin that say whose row it is."""
WITH_CATEGORIES = ("OneHotEncoder", "OrdinalEncoder")
DEPTH = 5
"""How deep pairs and data sets are searched for arrays."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types that NumPy has too, by the bytes of a number."""


@rule(
    "hole",
    "The promise would be for a row, and a person has several.",
    "Raise max_records_per_person, or drop rows: groups, or a person column.",
)
def _rows_per_person(subject: Subject) -> str:
    if subject.people is None:
        return ""
    most = max(Counter(numbered(subject.people).tolist()).values(), default=0)
    allowed = subject.plan.max_records_per_person
    return f"a person has more rows than the {allowed} that are accounted for" if most > allowed else ""


@rule(
    "hole",
    "What such steps learn is released with the model, without noise.",
    "Use public bounds and named categories.",
)
def _fitted_preprocessing(subject: Subject) -> str:
    return learning_steps(subject.preprocessing)


def learning_steps(preprocessing: Any) -> str:
    """Which transformers of a pipeline learn from the rows without noise, in words; '' if none does."""
    names = [] if preprocessing is None else sorted(set(_learning(preprocessing)))
    return f"the rows are not private yet where these learn from them: {', '.join(names)}" if names else ""


def _learning(step: Any) -> Iterator[str]:
    """Names of transformers that are fitted on the data, in pipelines and column transformers too."""
    if isinstance(step, list | tuple):
        parts = list(step)
    else:
        lists = [getattr(step, name) for name in WITH_PARTS if hasattr(step, name)]
        parts = [part[1] for named in lists for part in named]
        parts += [getattr(step, name) for name in WITH_ONE_PART if hasattr(step, name)]
        if not lists and hasattr(step, "transform") and not _learns_nothing(step):
            yield type(step).__name__
    for part in parts:
        yield from _learning(part)


def _learns_nothing(step: Any) -> bool:
    name = type(step).__name__
    if name in WITH_CATEGORIES:
        return not isinstance(step.categories, str) and step.min_frequency is None and step.max_categories is None
    return name in HARMLESS or (name == "SimpleImputer" and step.strategy == "constant")


@rule("hole", "Measures along the way would show private records without noise.", "Give data that is public.")
def _evaluation_on_training_data(subject: Subject) -> str:
    if subject.public_data is None or subject.x is None:
        return ""
    private, public = (list(_arrays(pair)) for pair in ((subject.x, subject.y), subject.public_data))
    is_same = subject.x is subject.public_data[0] or any(starmap(_is_same_memory, product(private, public)))
    return "public_data must not be the training data, got the same arrays" if is_same else ""


def _arrays(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Arrays and tensors, also those of pairs and of torch's data sets."""
    parts: Any = ()
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif hasattr(value, "to_numpy"):
        yield value.to_numpy()
    elif isinstance(value, tuple):
        parts = value
    elif isinstance(value, Dataset):
        parts = vars(value).values()
    for part in parts if depth else ():
        yield from _arrays(part, depth - 1)


def _is_same_memory(first: Any, second: Any) -> bool:
    """Compare addresses, not values: a copy is other memory."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.is_cuda and second.is_cuda:
        return first.data_ptr() == second.data_ptr() and first.numel() > 0
    arrays: list[Any] = [_as_numpy(part) if isinstance(part, Tensor) else part for part in (first, second)]
    return all(isinstance(part, np.ndarray) for part in arrays) and np.shares_memory(*arrays)


def _as_numpy(values: Tensor) -> np.ndarray | None:
    """The same memory as an array, where NumPy can read it."""
    if values.device.type != "cpu" or values.layout != torch.strided or values.itemsize not in INTEGERS:
        return None
    return values.detach().view(INTEGERS[values.itemsize]).numpy()


@rule(
    "care",
    "If a person has several rows, the promise is for one row and not for the person.",
    "Name the column as person in the schema; in Python, pass groups.",
)
def _person_not_named(subject: Subject) -> str:
    likely = [name for name in subject.unused if any(map(_is_about_people, re.findall("[A-Z]*[a-z]*", name)))]
    if subject.people is not None or not likely:
        return ""
    return f"every row counts as another person, and there is a column {likely[0]!r}"


def _is_about_people(word: str) -> bool:
    return word.lower() in IDENTIFIERS or word.lower().startswith(PEOPLE)
