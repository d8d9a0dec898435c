"""Workers that hold a share of the records each: their sums meet before the noise, in eager and in captured steps."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.data.records import InMemoryRecords, ResidentRecords
from dpbnn.training.run import prepared
from dpbnn.training.steps import CapturedSteps, EagerSteps
from tests.extending import skeleton
from tests.training.steps.replay import Replays

N, STEPS = 90, 4
X, Y = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3
SHARES = slice(0, 40), slice(40, N)
PLAN = dpbnn.PrivacyPlan(N, N, STEPS, clip_norm=0.5, noise_multiplier=3.0, delta=1e-3)
MODEL = nn.Linear(4, 3)
METHODS = {"sgd": dpbnn.SGD(0.1), "joint bbp": dpbnn.BBP(0.1, form="joint", num_draws=2)}
CASES = [("sgd", None), ("sgd", 16), ("joint bbp", None)]


def work_and_state(method="sgd", micro_batch_size=None):
    execution = dpbnn.Execution(micro_batch_size=micro_batch_size)
    settings = {"seed": 1, "execution": execution, "unsafe_seed": 5}
    run = prepared(MODEL, X, Y, METHODS[method], PLAN, dpbnn.Categorical(), **settings)
    position = run.begin()
    return position.work, position.state


def releases(steps, count=STEPS):
    """What each step releases; the states go on from there."""
    released = []
    for step in range(count):
        noisy = steps.release(step)
        released.append({name: values.clone() for name, values in noisy[0].gradients.items()})
        steps.take(noisy, step)
    return released


def eager(work, state):
    return EagerSteps([work], [state], 0)


def captured(work, state):
    records = ResidentRecords.of(work.records, torch.device("cpu"))
    return CapturedSteps([replace(work, records=records)], [state], 0, Replays())


def assert_same(first, second, **tolerance):
    for one, other in zip(first, second, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], **tolerance)


@pytest.mark.parametrize(("method", "micro_batch_size"), CASES)
def test_two_workers_release_what_one_does_with_all_records(method, micro_batch_size):
    how = method, micro_batch_size
    meeting = skeleton("A sum over processes").Meeting(2)

    def work_on(rank):
        work, state = work_and_state(*how)
        share = InMemoryRecords(X[SHARES[rank]], Y[SHARES[rank]])
        return releases(eager(meeting.join(work, rank, share), state))

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(work_on, range(2))
    assert_same(first, second, rtol=0, atol=0)
    assert_same(first, releases(eager(*alone(how, slice(None)))), rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError):  # of one worker alone
        assert_same(first, releases(eager(*alone(how, SHARES[0]))))


def alone(how, rows, add=lambda sums: None):
    """One worker with these records, and what it does with its sums."""
    work, state = work_and_state(*how)
    return replace(work, records=InMemoryRecords(X[rows], Y[rows]), sum_over_processes=add), state


@pytest.mark.parametrize("taken", [eager, captured])
@pytest.mark.parametrize(("method", "micro_batch_size"), CASES)
def test_the_seam_sees_float64_sums_once_in_each_step_and_the_noise_comes_once_after_it(
    taken, method, micro_batch_size
):
    how, seen = (method, micro_batch_size), []

    def leave(sums):
        seen.append({name: values.clone() for name, values in sums.items()})

    def add_the_other(sums):
        for name, values in sums.items():
            values.add_(seen[len(added)][name])
        added.append({name: values.clone() for name, values in sums.items()})

    added = []
    releases(taken(*alone(how, SHARES[1], leave)), count=1)
    assert len(seen) == 1
    assert all(values.dtype == torch.float64 for values in seen[0].values())
    work, state = alone(how, SHARES[0], add_the_other)
    (noisy,) = releases(taken(work, state), count=1)
    noise = {name: torch.zeros_like(values) for name, values in added[0].items()}
    work.noise.add([noise[name] for name in sorted(noise)], 0.5, 1.5, 0)
    assert_same([noisy], [{n: (v + noise[n]).float() for n, v in added[0].items()}], rtol=1e-6, atol=1e-6)
    whole = releases(eager(*alone(how, slice(None))), count=1)
    assert_same([noisy], whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("micro_batch_size", [None, 16])
def test_captured_steps_leave_a_gap_for_the_seam_in_every_step(micro_batch_size):
    """Another worker whose sums are ten in every number; the same as if its sums had been added to eager ones."""

    def add_ten(sums):
        calls.append(len(calls))
        for values in sums.values():
            values.add_(10.0)

    calls, found = [], []
    for taken in (eager, captured):
        steps = taken(*alone(("sgd", micro_batch_size), SHARES[0], add_ten))
        for step in range(STEPS):
            steps.release_and_take(step)
        found.append(dict(steps.states[0].weights))
    assert len(calls) == 2 * STEPS
    assert_same(*([weights] for weights in found), rtol=1e-5, atol=1e-5)


def test_sums_are_written_over_and_never_replaced():
    """A graph would go on with the tensor that it was captured with: the sum of one worker alone."""

    def replace_them(sums):
        for name in sums:
            sums[name] = sums[name] + 1

    for taken in (eager, captured):
        with pytest.raises(TypeError, match="does not support item assignment"):
            taken(*alone(("sgd", None), SHARES[0], replace_them)).release(0)
