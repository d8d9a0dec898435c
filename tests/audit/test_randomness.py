"""Checks of random numbers: all hold on the real code, and each bug fails the checks that are about it."""

import numpy as np
import pytest
import torch

from dpbnn.audit import randomness
from dpbnn.audit.randomness import audit_randomness
from dpbnn.device.generators import Generators
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

NOISE, BATCH = "no two steps or runs have the same noise", "no two steps or runs have the same batch"
MASKS, READ = "no two steps or runs have the same masks", "no two steps or runs draw the same to read a record"
STREAMS, SEEDS = "no two steps, purposes, parts or runs share a stream", "masks and reading draw from more than 32 bits"
APART = "sampling, masks, noise and reading ask for different streams"


@pytest.fixture(autouse=True)
def _fewer_steps(monkeypatch):
    monkeypatch.setattr(randomness, "LARGEST_POWER", 12)
    monkeypatch.setattr(randomness, "AT_RANDOM", 10)
    monkeypatch.setattr(randomness, "WATCHED_STEPS", 20)


def failed():
    checks = audit_randomness().checks
    assert len(checks) >= 8
    return {check.name for check in checks if not check.holds}


def test_no_check_fails_on_the_real_code_and_large_steps_are_among_those_compared():
    assert failed() == set()
    found = audit_randomness()
    assert found.largest_step >= 2**12
    steps = found.streams / (len(randomness.PURPOSES) * len(randomness.PARTS) * randomness.RUNS)
    assert steps == int(steps) > 40


def one_key(patch):
    key = bytes(32)
    patch.setattr(Randomness, "from_operating_system", staticmethod(lambda: Randomness(key)))


def noise_again_later(patch):
    original = Randomness.add_normals
    patch.setattr(Randomness, "add_normals", lambda self, at, scale, step: original(self, at, scale, step % 1024))


def purposes_forgotten(patch):
    original = Randomness._derive
    patch.setattr(Randomness, "_derive", lambda self, _, step, part: original(self, "noise", step, part))


def batches_alike(patch):
    patch.setattr(PoissonSampler, "batch", lambda *_: np.arange(3))


def seeded_masks(patch):
    patch.setattr(Randomness, "masks", lambda self, step: Generators.seeded(step))


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        (one_key, {STREAMS, NOISE, BATCH, MASKS, READ}),
        (noise_again_later, {NOISE}),
        (purposes_forgotten, {STREAMS}),
        (batches_alike, {BATCH}),
        (seeded_masks, {MASKS, SEEDS}),
    ],
)
def test_a_bug_fails_the_checks_that_are_about_it_and_no_others(monkeypatch, plant, names):
    plant(monkeypatch)
    assert failed() == names


def test_streams_that_two_purposes_ask_for_are_noticed(monkeypatch):
    monkeypatch.setattr(randomness, "_mask", randomness._noise)
    assert APART in failed()


def test_a_state_that_a_seed_leads_to_is_told_from_one_of_many_bits():
    assert randomness._has_32_bits(Generators.seeded(7))
    assert not randomness._has_32_bits(Randomness.from_operating_system().masks(0))
    assert torch.initial_seed() == 0, "and the global generator is left alone"
