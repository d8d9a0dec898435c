"""Parts of a fixed size, on a CPU."""

from itertools import chain

import numpy as np
import pytest
import torch

from dpbnn.privacy.randomness import Randomness
from dpbnn.privacy.sampling import PoissonSampler
from dpbnn.records import InMemoryRecords, ResidentRecords
from dpbnn.stepping.feeds import ResidentFeed, StreamedFeed, largest_part, part_size

CPU = torch.device("cpu")


def records(count):
    return InMemoryRecords(torch.arange(count)[:, None].float(), torch.arange(count))


def handed_out(feed, steps):
    """For each step the records that are present, in order, and how many parts there were."""
    for step in range(steps):
        parts, found = feed.parts(step), []
        for _ in range(parts):
            feed.next_part()
            ((x, y, present),) = feed.read()
            assert torch.equal(x[:, 0][present], y[present].float())
            assert not x[~present].any()
            found.append(y[present].clone())
        yield torch.cat(found).tolist(), parts


@pytest.mark.parametrize("size", [1, 7, 16, 64])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_every_batch_is_handed_out_whole_and_nothing_else(count, size):
    sampler = PoissonSampler(count, 0.05, Randomness.from_seed(3))
    steps = 300  # beyond what is sampled ahead
    expected = [sampler.batch(step).tolist() for step in range(steps)]
    resident = ResidentFeed(ResidentRecords.of(records(count), CPU), [sampler], size, 0)
    streamed = StreamedFeed(records(count).batches(sampler, 0, steps, 0), records(count).empty, size, CPU)
    for feed in (resident, streamed):
        found = list(handed_out(feed, steps))
        assert [batch for batch, _ in found] == expected
        assert [parts for _, parts in found] == [max(1, -(-len(batch) // size)) for batch in expected]


def test_a_feed_can_begin_in_the_middle_of_a_run():
    sampler = PoissonSampler(300, 0.05, Randomness.from_seed(3))
    feed = ResidentFeed(ResidentRecords.of(records(300), CPU), [sampler], 16, 77)
    found = [batch for batch, _ in handed_out(feed, 20)]
    assert found == [sampler.batch(step).tolist() for step in range(77, 97)]


def test_several_runs_have_batches_of_their_own():
    samplers = [PoissonSampler(300, 0.05, Randomness.from_seed(seed)) for seed in (1, 2)]
    feed = ResidentFeed(ResidentRecords.of(records(300), CPU), samplers, 16, 0)
    for step in range(50):
        found = [[], []]
        for _ in range(feed.parts(step)):
            feed.next_part()
            for own, (_, y, present) in zip(found, feed.read(), strict=True):
                own += y[present].tolist()
        assert found == [sampler.batch(step).tolist() for sampler in samplers]


@pytest.mark.parametrize(
    ("num_records", "rate", "at_most", "parts"),
    [
        (60_000, 256 / 60_000, None, 1),
        (1000, 1.0, None, 1),
        (10_000, 1.0, None, 3),
        (60_000, 0.5, 64, 475),
        (0, 0.1, None, 1),
    ],
)
def test_a_part_holds_nearly_every_batch_or_an_even_share(num_records, rate, at_most, parts):
    size, number = part_size(num_records, rate, 3.0, at_most)
    assert number == parts
    assert 1 <= size <= (at_most or 4096)
    spread = np.sqrt(num_records * rate * (1 - rate))
    assert number * size >= min(num_records, num_records * rate + 3 * spread) * (1 if at_most is None else 0.999)


def test_large_models_take_small_parts_and_small_models_whole_batches():
    assert largest_part(26_010, 256) is None
    assert largest_part(124_000_000, 64) == 8
    assert largest_part(22_000_000, 256) == 32


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
