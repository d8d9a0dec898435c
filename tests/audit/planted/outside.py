"""Bugs of what is seen from outside: values without noise, secrets, releases that nobody counts."""

import base64
import json
from dataclasses import replace

import pytest
import torch

from dpbnn.training.run import Run
from dpbnn.training.steps import eager
from dpbnn.types import NoisySum
from tests.audit.planted.common import STEPS, Bug, X, Y, before_noise, fitted


def watched_noise(patch, seen):
    """Notes the source of the noise of every release."""
    original = eager.add_noise

    def noted(clipped, noise_multiplier, source, step):
        seen.append(source)
        return original(clipped, noise_multiplier, source, step)

    patch.setattr(eager, "add_noise", noted)


def visible():
    """Contract: with constants for releases, two data sets look the same from outside."""
    original = eager.add_noise

    def constant(clipped, noise_multiplier, randomness, step):
        shapes = {name: torch.zeros_like(values) for name, values in clipped.gradients.items()}
        original(clipped, noise_multiplier, randomness, step)
        return NoisySum(shapes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "add_noise", constant)
        releases = [fitted(x, Y, unsafe_seed=0) for x in (X, 3 * X + 1)]
    shown = [(json.dumps(release.settings, sort_keys=True, default=str), release.history) for release in releases]
    weights = [release.posterior.weights for release in releases]
    same = all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    return shown[0] != shown[1] or not same


def secret_key(folder):
    """Contract: nothing that is saved holds the key of the noise."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        watched_noise(patch, seen)
        fitted().save(folder / "release")
    key = seen[0].randomness.key
    forms = key, key.hex().encode(), base64.b64encode(key), str(int.from_bytes(key)).encode()
    files = [file.read_bytes() for file in (folder / "release").iterdir()]
    return any(form in content for form in forms for content in files)


def counted():
    """Contract: a run makes as many releases as its plan has steps."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        watched_noise(patch, seen)
        release = fitted()
    return not len(seen) == release.settings["releases_charged"] == STEPS


def of_releases(change):
    """A patch of what `fit` returns; `change` gives further settings."""

    def plant(patch):
        original = Run.draft

        def planted(self, position, *arguments):
            found = original(self, position, *arguments)
            return replace(found, settings={**found.settings, **change(position)})

        patch.setattr(Run, "draft", planted)

    return plant


def norms_in_the_log(patch):
    norms = []

    def noted(clipped, noise_multiplier):
        norms.append(sum(float(values.norm()) for values in clipped.gradients.values()))
        return clipped, noise_multiplier

    before_noise(noted)(patch)
    of_releases(lambda _: {"mean_norm": sum(norms[-STEPS:]) / STEPS})(patch)


def two_releases_in_a_step(patch):
    original = eager.EagerSteps.release

    def planted(self, step):
        (first,) = original(self, step)
        self._batches = [eager.batches_of(work, step) for work in self._runs]  # the same batch, with other noise
        noise, ledgers = eager.add_noise, self._ledgers
        eager.add_noise = lambda clipped, multiplier, source, _: noise(clipped, multiplier, source, step + 2**30)
        self._ledgers = []
        try:
            (second,) = original(self, step)
        finally:
            eager.add_noise, self._ledgers = noise, ledgers
        return [NoisySum({name: (values + second.gradients[name]) / 2 for name, values in first.gradients.items()})]

    patch.setattr(eager.EagerSteps, "release", planted)


BUGS = [
    Bug("values without noise in the log", norms_in_the_log, visible),
    Bug(
        "the key of the noise saved with the release",
        of_releases(lambda position: {"run": position.work.randomness.key.hex()}),
        secret_key,
    ),
    Bug("a second release in every step that nobody charges", two_releases_in_a_step, counted),
]
