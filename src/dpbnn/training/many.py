"""`fit_many`: several runs on the same records, all at once where a CUDA device can capture them.

    >>> import torch, dpbnn
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> plan = dpbnn.PrivacyPlan(100, 10, 20, clip_norm=1.0, noise_multiplier=2.0, delta=1e-3)
    >>> setups = [
    ...     dpbnn.Setup(torch.nn.Linear(3, 2), dpbnn.SGD(learning_rate=rate), plan, dpbnn.Categorical())
    ...     for rate in (0.1, 0.3)
    ... ]
    >>> [release.settings["learning_rate"] for release in dpbnn.fit_many(setups, x, y, progress=False)]
    [0.1, 0.3]

A small network leaves a large device idle: the steps of all runs are captured side by side in one CUDA graph, and one
launch takes a step of each. Every run has its own batches, noise and state, as if it were alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpbnn import _validate
from dpbnn.data.records import ResidentRecords
from dpbnn.device.execution import Execution
from dpbnn.errors import DpbnnError
from dpbnn.methods import Method
from dpbnn.methods.store import reserved
from dpbnn.models.likelihoods import Likelihood
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.release.release import Release
from dpbnn.training.loop import train
from dpbnn.training.position import Position
from dpbnn.training.prepare import refuse_several_processes
from dpbnn.training.run import Run, prepared
from dpbnn.training.steps import why_not_captured

__all__ = ["Setup", "fit_many"]


@dataclass
class Setup:
    """One run of several.

    Args:
        model: as in `fit`; several setups may share one, as it is not changed.
        method: as in `fit`.
        plan: as in `fit`, for this run alone.
        likelihood: as in `fit`.
        seed: as in `fit`; with None, runs draw apart.
    """

    model: nn.Module
    method: Method[Any]
    plan: PrivacyPlan
    likelihood: Likelihood
    seed: int | None = None


def fit_many(
    setups: Iterable[Setup],
    X: Any,
    y: Any = None,
    *,
    device: str | torch.device | None = None,
    execution: Execution | None = None,
    progress: bool = True,
) -> list[Release]:
    """Train several models on the same records; `device`, `execution` and `progress` are those of `fit`.

    Each release's guarantee is about that release alone. Whoever sees several of them, or one that was chosen by
    looking at the others, has learned from all: their epsilons and deltas add up.

    Returns:
        A release for each setup, in their order.

    Raises:
        DpbnnError: what `fit` would refuse in a setup; the message begins with its place, counted from 0: `setups[1]`.

    Guarantees:
        Each run has batches and noise of its own.
        The releases are those of single runs, but for rounding.
        No two runs keep their samples in one folder.
    """
    refuse_several_processes()
    runs: list[Run] = []
    tried: set[tuple[int, int]] = set()
    for index, setup in enumerate(_listed(setups)):
        if runs and isinstance(runs[0].work.records, ResidentRecords):  # they are on the device already
            X, y = runs[0].work.records, None
        options = setup.method, setup.plan, setup.likelihood, setup.seed, device, execution
        pair = id(setup.model), id(setup.likelihood)
        with _named(index):
            run = prepared(setup.model, X, y, *options, must_try=pair not in tried)
            runs.append(run.linted(X, y))
        tried.add(pair)
    with ExitStack() as folders:
        for index, run in enumerate(runs):
            with _named(index):
                folders.enter_context(reserved(run.prepared.folder))
        ledgers = Ledger.open_all([run.work.plan for run in runs])  # all are charged, or none
        positions = [run.begin(ledger) for run, ledger in zip(runs, ledgers, strict=True)]
        for group in _groups(positions):
            train(group, progress=progress)
        drafts = [run.draft(position) for run, position in zip(runs, positions, strict=True)]
        return [draft.release(settings={"runs_on_the_same_records": len(runs)}) for draft in drafts]


def _listed(setups: object) -> list[Setup]:
    """The setups as a list, also from an iterator."""
    if isinstance(setups, Setup) or not isinstance(setups, Iterable):
        _validate.refuse("setups", "a list of Setup(...)", setups)
    listed = list(setups)
    if not listed:
        _validate.refuse("setups", "at least one Setup(...)", setups)
    for index, setup in enumerate(listed):
        if not isinstance(setup, Setup):
            _validate.refuse(f"setups[{index}]", "a Setup(...)", setup)
    return listed


@contextmanager
def _named(index: int) -> Iterator[None]:
    """Name the setup in every error."""
    try:
        yield
    except DpbnnError as error:
        raise DpbnnError(f"setups[{index}]: {error}") from error


def _groups(positions: Sequence[Position]) -> Iterable[list[Position]]:
    """Runs that can be captured together; all others alone."""
    groups: dict[Any, list[Position]] = {}
    for index, position in enumerate(positions):
        work = position.work
        can_share = isinstance(work.records, ResidentRecords) and why_not_captured(work, position.state, 0) is None
        key = (work.plan.steps, work.device, id(work.records)) if can_share else index
        groups.setdefault(key, []).append(position)
    return groups.values()
