"""The parts of a fit: private rows, bounds that are given, and the folder of a fit that may be interrupted."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import explained, is_partial
from dpbnn.files.claim import LOCK, OWNER
from dpbnn.privacy.queries.bounds import Bounds
from dpbnn.tables.terms import LEDGER, TRAINING, FitFolder, claimed, is_begun

__all__ = ["PrivateRows", "as_bounds", "fit_folder"]

FILES = (LEDGER, TRAINING, LOCK, OWNER)
"""What is in the folder of an unfinished fit."""


@dataclass(eq=False)
class PrivateRows:
    """Checked rows, at most `max_records_per_person` of each person; without `classes` the targets are numbers.

    `public` has attributes of the fitted estimator that are known already; `assumptions` say why they are public.
    """

    X: np.ndarray
    y: np.ndarray
    classes: int | None
    public: Mapping[str, Any]
    assumptions: tuple[str, ...] = ()


@contextmanager
def fit_folder(checkpoint: Any, take_over: bool) -> Iterator[FitFolder]:
    """The folder of a fit; removed when the fit ends, kept when it fails after something was bought or trained."""
    if checkpoint is None:
        yield FitFolder()
        return
    if not isinstance(checkpoint, (str, os.PathLike)):
        _validate.refuse("checkpoint", "the path of a folder", checkpoint)
    folder = Path(checkpoint)
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    is_strange = any(name not in FILES and not is_partial(name, FILES) for name in names)
    if (folder.exists() and not folder.is_dir()) or is_strange:
        raise DpbnnError(f"checkpoint {folder} exists and is no checkpoint; choose another path.")
    with explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with claimed(folder, take_over) as fit:
        try:
            yield fit
        except BaseException:
            with suppress(OSError):
                if not is_begun(folder):
                    fit.remove()
            raise
        try:
            fit.remove()
        except OSError as error:  # the fit is done
            warn(f"checkpoint {folder} cannot be removed: {error.strerror}; delete it.")


def as_bounds(name: str, given: Any, columns: int) -> Bounds:
    """A pair for all columns, or a pair for each."""
    expected = f"(low, high), or such a pair for each of {columns} columns"
    try:
        pairs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DpbnnError(f"{name} must be {expected}.") from error
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (columns, 1))
    if pairs.shape != (columns, 2):
        raise DpbnnError(f"{name} must be {expected}, got shape {list(pairs.shape)}.")
    return Bounds(pairs[:, 0].copy(), pairs[:, 1].copy())
