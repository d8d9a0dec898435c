"""Parts of a fixed size, on a CPU."""

from itertools import chain

import numpy as np
import pytest
import torch

from dpbnn.data.records import InMemoryRecords, ResidentRecords
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler
from dpbnn.training.steps.feeds import ResidentFeed, Sizes, StreamedFeed, largest_part

CPU = torch.device("cpu")


def records(count):
    return InMemoryRecords(torch.arange(count)[:, None].float(), torch.arange(count))


def handed_out(feed, steps):
    """For each step the records that are present, in order, and how many parts there were."""
    for step in range(steps):
        parts, found = feed.parts(step), []
        for size in parts:
            feed.next_part()
            ((x, y, present),) = feed.read(size)
            assert len(x) == len(y) == len(present) == size
            assert torch.equal(x[:, 0][present], y[present].float())
            assert not x[~present].any()
            found.append(y[present].clone())
        yield torch.cat(found).tolist(), parts


@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (64, 64), (7, 2), (16, 2), (64, 8)])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_every_batch_is_handed_out_whole_and_nothing_else(count, sizes):
    sizes = Sizes(*sizes, together=count)
    sampler = PoissonSampler(count, 0.05, Randomness.from_seed(3))
    steps = 300  # beyond what is sampled ahead
    expected = [sampler.batch(step).tolist() for step in range(steps)]
    resident = ResidentFeed(ResidentRecords.of(records(count), CPU), [sampler], sizes, 0)
    streamed = StreamedFeed(records(count).batches(sampler, 0, steps, 0), records(count).empty, sizes, CPU)
    for feed in (resident, streamed):
        found = list(handed_out(feed, steps))
        assert [batch for batch, _ in found] == expected
        assert [parts for _, parts in found] == [sizes.split(len(batch)) for batch in expected]


def test_a_feed_can_begin_in_the_middle_of_a_run():
    sampler = PoissonSampler(300, 0.05, Randomness.from_seed(3))
    feed = ResidentFeed(ResidentRecords.of(records(300), CPU), [sampler], Sizes(16, 16, 16), 77)
    found = [batch for batch, _ in handed_out(feed, 20)]
    assert found == [sampler.batch(step).tolist() for step in range(77, 97)]


@pytest.mark.guarantees("Each run has batches and noise of its own.")
def test_several_runs_have_batches_of_their_own():
    samplers = [PoissonSampler(300, 0.05, Randomness.from_seed(seed)) for seed in (1, 2)]
    feed = ResidentFeed(ResidentRecords.of(records(300), CPU), samplers, Sizes(16, 2, 300), 0)
    for step in range(50):
        found = [[], []]
        for size in feed.parts(step):
            feed.next_part()
            for own, (_, y, present) in zip(found, feed.read(size), strict=True):
                own += y[present].tolist()
        assert found == [sampler.batch(step).tolist() for sampler in samplers]


@pytest.mark.parametrize(
    ("num_records", "rate", "at_most", "sizes"),
    [
        (60_000, 256 / 60_000, None, Sizes(320, 320, 520)),
        (60_000, 256 / 60_000, 100, Sizes(100, 4, 520)),
        (1000, 1.0, None, Sizes(1000, 1000, 1000)),
        (10_000, 1.0, None, Sizes(4096, 170, 10_000)),
        (60_000, 0.5, 1, Sizes(1, 1, 31_542)),
        (60_000, 0.5, 3, Sizes(3, 1, 31_542)),
        (0, 0.1, None, Sizes(8, 8, 8)),
    ],
)
def test_a_part_holds_nearly_every_batch_or_what_is_allowed(num_records, rate, at_most, sizes):
    assert Sizes.of(num_records, rate, 4.0, at_most) == sizes


@pytest.mark.parametrize("sizes", [(1, 1), (8, 8), (3, 1), (7, 2), (100, 12), (100, 4)])
def test_parts_hold_any_number_of_records_and_pad_little(sizes):
    sizes = Sizes(*sizes, together=500)
    for count in range(500):
        parts = sizes.split(count)
        assert len(parts) == max(1, -(-count // sizes.largest))
        assert len(set(parts)) == 1
        assert 1 <= parts[0] <= sizes.largest
        assert parts[0] % sizes.step == 0 or parts[0] == sizes.largest
        assert 0 <= sum(parts) - count <= max(1, len(parts) * sizes.step)


@pytest.mark.parametrize(
    ("sizes", "adds_up"),
    [
        (Sizes(304, 304, 520), False),  # a second part now and then
        (Sizes(1000, 1000, 1000), False),  # all records at once, never more
        (Sizes(1096, 1096, 1452), True),
        (Sizes(1, 1, 31_542), True),
        (Sizes(100, 4, 520), True),
    ],
)
def test_parts_are_added_up_in_float64_unless_there_are_few_of_few_records(sizes, adds_up):
    assert sizes.adds_up == adds_up


def test_large_models_take_a_batch_in_parts_and_small_models_as_a_whole():
    assert largest_part(26_010, 60_000, 256 / 60_000) is None
    assert largest_part(124_000_000, 256, 0.25) == 24
    assert largest_part(22_000_000, 1024, 0.25) == 90


def test_batches_of_steps_that_are_drawn_together_are_independent():
    """Over many keys: whether a record joins one step says nothing about the next, nor about its neighbour."""
    joined = np.zeros((400, 3, 50), bool)
    for seed in range(400):
        sampler = PoissonSampler(50, 0.3, Randomness.from_seed(seed))
        for step in range(3):
            joined[seed, step, sampler.batch(step)] = True
    assert abs(joined.mean() - 0.3) < 5 * np.sqrt(0.21 / joined.size)
    pairs = chain([(joined[:, 0], joined[:, 1]), (joined[:, 1], joined[:, 2])], [(joined[:, :, :-1], joined[:, :, 1:])])
    for one, other in pairs:
        assert abs((one & other).mean() - 0.09) < 5 * np.sqrt(0.09 * 0.91 / one.size)
