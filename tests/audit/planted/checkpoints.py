"""Bugs of interrupted runs that go on."""

import contextlib
import struct

import pytest
import torch

import dpbnn
from dpbnn._warn import muted
from dpbnn.privacy.ledger import Ledger, fingerprint
from dpbnn.training.checkpoint import Checkpoint
from dpbnn.training.checkpoint.journal import HEADER_BYTES, LINE_BYTES, Journal, Line
from dpbnn.training.position import Position
from dpbnn.training.steps import eager
from tests.audit.planted.common import STEPS, Bug, X, fitted, scaled


class Power:
    """Fails when a run takes its n-th step; until then every step, its key and its release are noted."""

    def __init__(self, patch, lasts, seen=None, at_each=lambda step: None):
        original, noise, keys, taken = eager.EagerSteps.take, eager.add_noise, {}, []

        def noted(clipped, noise_multiplier, source, step):
            keys[step] = source.randomness.key
            return noise(clipped, noise_multiplier, source, step)

        def take(steps, noisy, step):
            at_each(step)
            taken.append(step)
            if seen is not None:
                seen.append((keys[step], step, fingerprint(*noisy)))
            if len(taken) == lasts:
                raise KeyboardInterrupt
            return original(steps, noisy, step)

        patch.setattr(eager, "add_noise", noted)
        patch.setattr(eager.EagerSteps, "take", take)


def run(folder, lasts=None, seen=None, seconds=0.0, shrink=1.0, at_each=lambda step: None, x=X):
    """Train with a checkpoint, until it fails; with `shrink`, on a machine that computes other sums."""
    options = {"checkpoint": folder, "execution": dpbnn.Execution(checkpoint_seconds=seconds)}
    fresh_key = muted("The resumed run may round differently")
    with fresh_key, pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        Power(patch, lasts, seen, at_each)
        if shrink != 1.0:
            clip = eager.clip_and_sum
            patch.setattr(eager, "clip_and_sum", lambda *how, **more: scaled(clip(*how, **more), shrink))
        return fitted(x, **options)


def resuming(folder):
    """Contract: a resumed run has charged every step of the plan, once."""
    run(folder / "state", lasts=9)
    return run(folder / "state").settings["releases_charged"] != STEPS


def journal(folder):
    """Contract: a release is in the journal before it is used."""
    missing = []

    def is_noted(step):
        if step not in journalled(folder / "state"):
            missing.append(step)

    run(folder / "state", at_each=is_noted)
    return bool(missing)


def saved_key(folder):
    """Contract: the key that noise was drawn with last is the one that is saved."""
    seen = []
    run(folder / "state", lasts=5, seconds=1e9)
    run(folder / "state", lasts=1, seen=seen, seconds=1e9, shrink=0.99)
    return torch.load(folder / "state" / "state", weights_only=True)["key"] != seen[-1][0]


def repeated(folder):
    """Contract: the noise of a step is used on one sum and no other."""
    seen = []
    run(folder / "state", lasts=5, seen=seen, seconds=1e9)
    run(folder / "state", lasts=5, seen=seen, seconds=1e9, shrink=0.99)
    return len({(key, step) for key, step, _ in seen}) != len(set(seen))


def other_data(folder):
    """Contract: a run does not go on with other data."""
    run(folder / "state", lasts=5)
    try:
        run(folder / "state", lasts=5, x=X + 1)
    except dpbnn.DpbnnError:
        return False
    return True


def journalled(folder):
    """The steps in a journal; its lines are read as they lie."""
    content = (folder / "journal").read_bytes()[HEADER_BYTES:]
    return {struct.unpack_from("<q", content, start)[0] for start in range(0, len(content), LINE_BYTES)}


def journal_after_use(patch):
    original, late = Journal.append, []

    def planted(self, line):
        late.append(line)
        if len(late) > 1:
            original(self, late.pop(0))

    def charged(self, ledger, step, mark):
        self._journal.append(Line(step, mark, self._key_id))
        ledger.enter(step, mark)

    patch.setattr(Journal, "append", planted)
    patch.setattr(Checkpoint, "charge", charged)


def renewed_key_not_saved(patch):
    original = Position.draw_afresh

    def planted(self, folder):
        with pytest.MonkeyPatch.context() as within:
            within.setattr(Position, "save", lambda *_: None)
            original(self, folder)

    patch.setattr(Position, "draw_afresh", planted)


BUGS = [
    Bug("a resumed run forgets what was spent", lambda p: p.setattr(Checkpoint, "charges", lambda _: []), resuming),
    Bug("a release used before it is in the journal", journal_after_use, journal),
    Bug("a renewed key that is not saved", renewed_key_not_saved, saved_key),
    Bug(
        "the same noise on another sum after an interruption",
        lambda p: p.setattr(Ledger, "has_charged", lambda *_: False),
        repeated,
    ),
    Bug("a run that goes on with other data", lambda p: p.setattr(Checkpoint, "check", lambda *_: None), other_data),
]
