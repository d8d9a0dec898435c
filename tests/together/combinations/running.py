"""One run of a cell, by whichever entry, and everything of it that somebody outside can see."""

import contextlib
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import TensorDataset

import dpbnn
from tests.together.combinations import tables
from tests.together.combinations.subjects import Records, Subject
from tests.together.combinations.untouched import watched_for_changes
from tests.together.combinations.watch import CrashError, Query, Seen, same_chance, watching

UNSAFE_SEED = 11


@dataclass(frozen=True)
class Outcome:
    """What a run released, what was seen of it at the boundary, what anybody can see of it, and what it changed."""

    releases: tuple[dpbnn.Release, ...]
    seen: Seen
    shown: Mapping[str, Any]
    changed: Sequence[str]


def given_as(kind: str, records: Records) -> tuple[Any, Any]:
    """Records in the form that the cell asks for."""
    if kind == "dataset":
        return TensorDataset(records.x, records.y), None
    if kind == "arrays":
        return tuple(_array(values.numpy()) for values in (records.x, records.y))
    return records.x, records.y


def _array(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int32)


def run(subject: Subject, records: Records, folder: Path, *, has_checkpoint: bool = True, **watched: Any) -> Outcome:
    """Train once, in a new folder; `watched` goes to `watching`."""
    folder.mkdir()
    model = None if subject.is_table else subject.network()
    with watched_for_changes(model, records.x, records.y) as changed, _open_eyes(subject, watched) as (seen, noticed):
        releases = _trained(subject, records, model, _checkpoint(subject, folder) if has_checkpoint else None, noticed)
    return Outcome(releases, seen, _shown(releases, noticed, folder), changed)


def interrupted(
    subject: Subject, records: Records, folder: Path, crash_at: tuple[int, bool], answers: Sequence[Query]
) -> tuple[Seen, Outcome]:
    """What was seen until an interruption, and what came of the run that was started again.

    Queries get these answers, one after another.
    """
    folder.mkdir()
    model, checkpoint = None if subject.is_table else subject.network(), _checkpoint(subject, folder)
    with watched_for_changes(model, records.x, records.y) as changed:
        until = {"crash_at": crash_at, "answers": answers}
        with _open_eyes(subject, until) as (first, _), contextlib.suppress(CrashError):
            _trained(subject, records, model, checkpoint, {})
            raise AssertionError("the run was to be interrupted, and was not")
        rest = {"answers": answers[len(first.queries) :]}
        with _open_eyes(subject, rest, chance=1) as (seen, noticed):
            releases = _trained(subject, records, model, checkpoint, noticed, "--resume")
    return first, Outcome(releases, seen, _shown(releases, noticed, folder), changed)


def _checkpoint(subject: Subject, folder: Path) -> Path | None:
    """The command line makes its own beside what it writes."""
    if subject.cell["entry"].startswith("command line"):
        return folder / "model.unfinished"
    return None if subject.cell["checkpoint"] == "none" else folder / "checkpoint"


@contextlib.contextmanager
def _open_eyes(subject: Subject, watched: Mapping[str, Any], chance: int = 0) -> Iterator[tuple[Seen, dict[str, Any]]]:
    noticed: dict[str, Any] = {}
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        same_chance(subject.seed + chance),
        watching(sampling=subject.sampling, **watched) as seen,
    ):
        warnings.simplefilter("always")
        yield seen, noticed
    noticed["warnings"] = [(own.category.__name__, str(own.message)) for own in warned]
    noticed["printed"] = printed.getvalue()


def _trained(
    subject: Subject,
    records: Records,
    model: nn.Module | None,
    checkpoint: Path | None,
    noticed: dict[str, Any],
    *further: str,
) -> tuple[dpbnn.Release, ...]:
    """By the entry of the cell; what else it shows goes into `noticed`."""
    entry = subject.cell["entry"]
    if entry.startswith("estimator"):
        estimator = tables.fit_estimator(subject, records, checkpoint)
        noticed["estimator"] = {
            name: repr(value)
            for name, value in vars(estimator).items()
            if name not in ("release_", "checkpoint", "_fitted_on")
        }
        return (estimator.release_,)
    if entry.startswith("command line"):
        assert checkpoint is not None
        return (tables.fit_by_command(subject, records, checkpoint.parent, *further),)
    assert model is not None
    return fitted(subject, records, model, checkpoint)


def fitted(
    subject: Subject, records: Records, model: nn.Module, checkpoint: Path | None = None
) -> tuple[dpbnn.Release, ...]:
    """By `fit`, or two at once by `fit_many`."""
    x, y = given_as(subject.cell["records"], records)
    how: dict[str, Any] = {"execution": subject.execution, "progress": False}
    if subject.cell["runs"] == "many":
        setups = [dpbnn.Setup(model, subject.method, subject.plan, subject.likelihood, seed) for seed in (3, 4)]
        return tuple(dpbnn.fit_many(setups, x, y, **how))
    is_seeded = subject.cell["checkpoint"] != "none" or subject.cell["threads"] != "1"
    own: dict[str, Any] = {"method": subject.method, "plan": subject.plan, "likelihood": subject.likelihood, "seed": 3}
    own |= {"unsafe_seed": UNSAFE_SEED} if is_seeded else {}
    return (dpbnn.fit(model, x, y, **own, **how, checkpoint=checkpoint, public_data=subject.public),)


def _shown(releases: tuple[dpbnn.Release, ...], noticed: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Everything that somebody outside can see, the files of a run among it; the data itself is not."""
    shown = dict(noticed)
    for number, release in enumerate(releases):
        release.save(folder / f"release-{number}")
        shown[f"settings {number}"] = json.dumps(dict(release.settings), sort_keys=True, default=repr)
        shown[f"history {number}"] = repr(release.history)
        shown[f"diagnostics {number}"] = repr(release.diagnostics)
        shown[f"words {number}"] = f"{release!r} {release.guarantee}"
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != "data.csv":
            shown[str(file.relative_to(folder))] = file.read_bytes()
    return shown
