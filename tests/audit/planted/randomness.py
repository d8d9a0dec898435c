"""Bugs of secret draws: the same numbers twice, or numbers that somebody knows."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import Dataset

import dpbnn
from dpbnn.audit.randomness import audit_randomness
from dpbnn.data.records import as_records
from dpbnn.device.generators import Generators
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler
from dpbnn.training import fit as training
from tests.audit.planted.common import PLAN, Bug, X, Y, fitted, network

LOUD = replace(PLAN, batch_size=10, steps=20, noise_multiplier=100.0)
"""So much noise that weights move by hardly anything else."""
TOO_ALIKE = 0.8
"""A correlation of 75 independent pairs is beyond it once in 10^17 times."""


class Drawing(Dataset):
    """Its records draw while they are read."""

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row] + torch.rand(()), Y[row]


@dataclass
class Chosen:
    """A sampler of these rows in every step."""

    rows: list[int]
    randomness: Randomness

    def batch(self, step):
        return np.array(self.rows)


def alone():
    """Contract: what reading a record draws depends on no other record."""
    records, randomness = as_records(Drawing(), None, torch.float32), Randomness.from_operating_system()
    (with_others, _), (by_itself, _) = (
        next(records.batches(Chosen(rows, randomness), 0, 1, 0)) for rows in ([1, 2, 3], [3])
    )
    return not torch.equal(with_others[-1], by_itself[-1])


def streams():
    """`dpbnn audit`, randomness."""
    return not audit_randomness().holds


def moved(release):
    before = dict(network().named_parameters())
    return torch.cat([(values - before[name].detach()).ravel() for name, values in release.posterior.weights.items()])


def are_alike(first, second):
    return abs(float(np.corrcoef(moved(first), moved(second))[0, 1])) > TOO_ALIKE


def side_by_side():
    """Contract: runs of `fit_many` have noise of their own."""
    setups = [dpbnn.Setup(network(), dpbnn.SGD(0.1), LOUD, dpbnn.Categorical(), seed=1) for _ in range(2)]
    return are_alike(*dpbnn.fit_many(setups, X, Y, progress=False))


def seeded():
    """Contract: a user's seed reaches neither noise nor sampling."""
    return are_alike(*(fitted(plan=LOUD, seed=7) for _ in range(2)))


def noise_key_by_steps_modulo(patch):
    original = Randomness.add_normals
    patch.setattr(
        Randomness, "add_normals", lambda self, tensors, scale, step: original(self, tensors, scale, step % 1024)
    )


def one_key_for_all_purposes(patch):
    original = Randomness.generator
    patch.setattr(Randomness, "generator", lambda self, _, step, part=0: original(self, "noise", step, part))


class Renamed:
    """Randomness of which every stream is asked for as the noise's."""

    def __init__(self, randomness):
        self.randomness = randomness

    def generator(self, _, step, part=0):
        return self.randomness.generator("noise", step, part)


def batches_from_the_noise(patch):
    original = PoissonSampler._draw

    def planted(self, table):
        return original(replace(self, randomness=Renamed(self.randomness)), table)

    patch.setattr(PoissonSampler, "_draw", planted)


def reading_from_32_bits(patch):
    def planted(self, step, row, generator):
        generator.manual_seed(self.torch_seed("reading", step, row))

    patch.setattr(Randomness, "seed_reading", planted)


def one_stream_for_all_runs(patch):
    shared = Randomness.from_operating_system()
    patch.setattr(Randomness, "from_operating_system", staticmethod(lambda: shared))


def the_users_seed(patch):
    original = training.prepared

    def planted(*arguments, **how):
        run = original(*arguments, **how)
        return replace(run, work=replace(run.work, randomness=Randomness(run.work.seed.to_bytes(32))))

    patch.setattr(training, "prepared", planted)


BUGS = [
    Bug("noise keyed by the step modulo 1024", noise_key_by_steps_modulo, streams),
    Bug("one key for noise, sampling and masks", one_key_for_all_purposes, streams),
    Bug("batches drawn from the stream of the noise", batches_from_the_noise, streams),
    Bug(
        "masks from a constant seed",
        lambda p: p.setattr(Randomness, "masks", lambda *_: Generators.seeded(0)),
        streams,
    ),
    Bug("what reading a record draws follows from 32 bits", reading_from_32_bits, streams),
    Bug(
        "records of a batch draw one after another from one stream",
        lambda p: p.setattr(Generators, "reseed", lambda *_: None),
        alone,
    ),
    Bug("runs of `fit_many` that share their noise", one_stream_for_all_runs, side_by_side),
    Bug("noise from the user's seed", the_users_seed, seeded),
]
