"""Bugs of how batches are drawn."""

import numpy as np
import torch

from dpbnn.audit.sampling import audit_sampling
from dpbnn.data.records import InMemoryRecords
from dpbnn.privacy.noise.sampling import PoissonSampler
from dpbnn.training.steps import eager
from dpbnn.training.steps.work import Work
from tests.audit.planted.common import Bug


def sampling():
    """`dpbnn audit`, sampling."""
    return not audit_sampling(0.1, batches=400).holds


def of_batches(change):
    """A patch of the batches as training reads them."""

    def plant(patch):
        original = InMemoryRecords.batches

        def planted(self, *arguments):
            yield from change(original(self, *arguments))

        patch.setattr(InMemoryRecords, "batches", planted)

    return plant


def of_rows(change):
    """A patch of the rows of a step's batch; `change` gets the sampler, how to draw those of any step, and the step."""

    def plant(patch):
        original = PoissonSampler.in_a_row

        def planted(self, first_step, end):
            steps = range(first_step, end)
            rows = [np.sort(change(self, lambda step: original(self, step, step + 1)[0], step)) for step in steps]
            return np.concatenate(rows), np.array([len(chosen) for chosen in rows])

        patch.setattr(PoissonSampler, "in_a_row", planted)

    return plant


def shuffled(sampler, _, step):
    size = round(sampler.num_records * sampler.sampling_rate)
    epoch, place = divmod(step, sampler.num_records // size)
    order = np.random.default_rng(epoch).permutation(sampler.num_records)
    return order[place * size : (place + 1) * size]


def in_pairs(sampler, drawn, step):
    """Neighbours join together."""
    even = drawn(step)[drawn(step) % 2 == 0]
    both = np.concatenate([even, even + 1])
    return both[both < sampler.num_records]


def tables_used_twice(sampler, drawn, step):
    table, row = divmod(step, 64)
    return drawn(table // 2 * 64 + row)


def batches_cut_at_the_expected_size(patch):
    original = eager.batches_of

    def planted(work, first_step):
        size = work.plan.batch_size
        return ((x[:size], y[:size]) for x, y in original(work, first_step))

    patch.setattr(eager, "batches_of", planted)


def rate_from_the_data(patch):
    def sampler(self):
        return PoissonSampler(len(self.records), self.plan.batch_size / len(self.records), self.randomness)

    patch.setattr(Work, "sampler", property(sampler))


def with_the_first_twice(batches):
    return ((torch.cat([x, x[:1]]), torch.cat([y, y[:1]])) for x, y in batches)


BUGS = [
    Bug("shuffled batches accounted as Poisson samples", of_rows(shuffled), sampling),
    Bug("sampling rate taken from the number of records", rate_from_the_data, sampling),
    Bug("batches cut at the expected size", batches_cut_at_the_expected_size, sampling),
    Bug("one record counted twice", of_batches(with_the_first_twice), sampling),
    Bug("empty batches skipped", of_batches(lambda batches: (batch for batch in batches if len(batch[0]))), sampling),
    Bug("the same batches again in the next block of steps", of_rows(tables_used_twice), sampling),
    Bug("records that join in pairs", of_rows(in_pairs), sampling),
]
