"""Runs that break off, and looks into what they leave."""

import pytest

from dpbnn.training import loop
from dpbnn.training.checkpoint import opened
from dpbnn.training.checkpoint.journal import HEADER_BYTES, LINE, LINE_BYTES
from dpbnn.training.steps import eager
from dpbnn.types import ClippedSum
from tests.training.test_fit import fit


class Interrupt(Exception):
    """Nobody catches it."""


def interrupt_at(patch, at, where="add_noise"):
    """Break off at the given call of one of the loop's own functions."""
    module = {"fingerprint": loop}.get(where, eager)
    original, calls = getattr(module, where), [0]

    def interrupted(*args, **kwargs):
        calls[0] += 1
        if calls[0] == at:
            raise Interrupt
        return original(*args, **kwargs)

    patch.setattr(module, where, interrupted)


def fit_interrupted(monkeypatch, where, at, **options):
    """A run that breaks off there."""
    with monkeypatch.context() as patch:
        interrupt_at(patch, at, where)
        with pytest.raises(Interrupt):
            fit(**options)


def saved_in(path):
    """The state, as this worker would go on from it."""
    with opened(path) as found:
        return found.resumed()


def lines_in(path):
    """How many releases the journal holds."""
    return ((path / "journal").stat().st_size - HEADER_BYTES) // LINE_BYTES


def released_in(path):
    """The lines of a journal, as `note_used_releases` writes them."""
    content = (path / "journal").read_bytes()[HEADER_BYTES:] if (path / "journal").exists() else b""
    whole = len(content) - len(content) % LINE_BYTES
    lines = (LINE.unpack(content[start : start + LINE.size]) for start in range(0, whole, LINE_BYTES))
    return {f"{step} {mark}" for step, mark, _ in lines}


def other_bits(patch):
    """From now on sums are computed with other last bits."""
    original = eager.clip_and_sum

    def changed(*arguments, **options):
        clipped = original(*arguments, **options)
        return ClippedSum({name: g * (1 + 1e-6) for name, g in clipped.gradients.items()}, clipped.sensitivity)

    patch.setattr(eager, "clip_and_sum", changed)


class Noises:
    """Remembers the noise of every step, as (step, key, numbers)."""

    def __init__(self, patch):
        self.drawn, original = [], eager.add_noise

        def noted(clipped, noise_multiplier, source, step):
            before = {name: values.double().clone() for name, values in clipped.gradients.items()}
            noisy = original(clipped, noise_multiplier, source, step)
            name = next(iter(before))
            self.drawn.append((step, source.randomness.key, (noisy.gradients[name].double() - before[name]).flatten()))
            return noisy

        patch.setattr(eager, "add_noise", noted)

    def of(self, step):
        """All that was drawn for a step."""
        return [numbers for own, _, numbers in self.drawn if own == step]

    @property
    def keys(self):
        """In the order of their first use."""
        return list(dict.fromkeys(key for _, key, _ in self.drawn))
