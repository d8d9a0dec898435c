"""The parts of a fit: private rows, what is settled before they are looked at, and what training leaves."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.errors import DpbnnError
from dpbnn.files.atomic import is_partial
from dpbnn.privacy.guarantee import Circumstances
from dpbnn.privacy.purchases import PurchaseFile
from dpbnn.privacy.queries.bounds import Bounds, Purchase
from dpbnn.release.draft import Draft
from dpbnn.tables.settings import Chosen, Facts
from dpbnn.training.checkpoint import LOCK, OWNER, locked

if TYPE_CHECKING:
    from dpbnn.sklearn.estimator import DPBayesEstimator

__all__ = ["Candidate", "Rows", "Terms", "Unfinished", "as_bounds", "unfinished"]

LEDGER, TRAINING = "ledger.json", "training"
"""What is in the folder of an unfinished fit."""
FILES = (LEDGER, TRAINING, LOCK, OWNER)


@dataclass(frozen=True)
class Terms:
    """Of one fit: public facts, settings with the plan that pays for everything, and how bounds are bought."""

    facts: Facts
    chosen: Chosen
    bought: Purchase | None


@dataclass(frozen=True)
class Rows:
    """Private rows, of each person at most so many.

    `public` has attributes of the fitted estimator that are known already; `assumptions` say why they are public.
    """

    X: np.ndarray
    y: np.ndarray
    outputs: int
    public: Mapping[str, Any]
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """An estimator whose network is trained and paid for, and not released yet."""

    estimator: "DPBayesEstimator"
    draft: Draft
    settings: Chosen

    def answers(self, X: np.ndarray) -> np.ndarray:
        """What `predict` will say, by draws that nobody can know."""
        own = self.estimator
        return own._answers(self.draft.predict(own._inputs(X), own.num_draws))

    def released(self, circumstances: Circumstances) -> dict[str, Any]:
        """All attributes of the fitted estimator, if the ledger is in order."""
        release = self.draft.release(circumstances)
        fitted = {name: value for name, value in vars(self.estimator).items() if name.endswith("_")}
        return fitted | {"release_": release, "guarantee_": release.guarantee, "settings_": self.settings}


@dataclass(frozen=True)
class Unfinished:
    """Where an interrupted fit keeps what it has bought and trained: nowhere, or in a folder as secret as the data.

    `check` stops a worker whose fit was taken over by another host: what it has bought since then is used by nobody.
    """

    ledger: PurchaseFile | None = None
    training: Path | None = None
    take_over: bool = False
    check: Callable[[], None] = lambda: None


@contextmanager
def unfinished(checkpoint: Any, take_over: bool) -> Iterator[Unfinished]:
    """The folder of a fit, locked for one worker; removed when the fit ends, kept when it fails after it has begun."""
    if checkpoint is None:
        yield Unfinished()
        return
    if not isinstance(checkpoint, (str, os.PathLike)):
        _validate.refuse("checkpoint", "the path of a folder", checkpoint)
    folder = Path(checkpoint)
    left = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    is_strange = any(name not in FILES and not is_partial(name, FILES) for name in left)
    if (folder.exists() and not folder.is_dir()) or is_strange:
        raise DpbnnError(f"checkpoint {folder} exists and is no checkpoint; choose another path.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder) as claim:
        claim.take(take_over, is_begun=_is_begun(folder))
        try:
            yield Unfinished(PurchaseFile(folder / LEDGER), folder / TRAINING, take_over, claim.check)
        except BaseException:
            with suppress(OSError):
                if not _is_begun(folder):  # nothing was bought or trained
                    claim.remove_folder()
            raise
        try:
            claim.remove_folder()
        except OSError as error:  # the fit is done
            warn(f"checkpoint {folder} cannot be removed: {error.strerror}; delete it.")


def _is_begun(folder: Path) -> bool:
    return any((folder / name).exists() for name in (LEDGER, TRAINING))


def as_bounds(name: str, given: Any, columns: int) -> Bounds:
    """A pair for all columns, or a pair for each."""
    try:
        pairs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DpbnnError(f"{name} must be (low, high), or such a pair for each of {columns} columns.") from error
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (columns, 1))
    if pairs.shape != (columns, 2):
        raise DpbnnError(
            f"{name} must be (low, high), or such a pair for each of {columns} columns, got shape {list(pairs.shape)}."
        )
    return Bounds(pairs[:, 0].copy(), pairs[:, 1].copy())
