"""Captured equals eager, for every registered method and every way to take a batch.

On a GPU these are CUDA graphs. On a CPU `tests.training.steps.replay` stands in for them: it replays operations and
runs no Python, so that whatever a capture leaves to Python shows here too.
"""

from dataclasses import replace
from functools import cache
from itertools import cycle

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.data.records import ResidentRecords
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.training.run import prepared
from dpbnn.training.steps import CapturedSteps, EagerSteps, feeds
from tests.methods.test_method import CASES, STEPS
from tests.together.combinations import makers
from tests.training.steps.replay import Replays, never_captured

pytestmark = pytest.mark.filterwarnings("ignore:The .* kept samples", "ignore:A noise|The plan")
DEVICES = [
    pytest.param("cpu", id="replay"),
    pytest.param("cuda", id="cuda graph", marks=pytest.mark.gpu),
]
FEW_STEPS, SEEDS = 5, (3, 4, 5)
OTHER_PARTS = ("more than 4096 records", "a large model")
"""Eager steps take these in other parts; on a GPU masks depend on that, and steps are compared that run as Python."""
BATCHES = {
    "one part": {"n": 120, "batch": 24},
    "several sizes of parts": {"n": 120, "batch": 60, "micro_batch_size": 24},
    "micro-batches": {"n": 120, "batch": 24, "micro_batch_size": 7},
    "more than 4096 records": {"n": 5000, "batch": 4400},
    "a large model": {"n": 120, "batch": 24, "large": True},
}


@pytest.fixture(autouse=True)
def _large(request, monkeypatch):
    if "a large model" in request.node.name:
        monkeypatch.setattr(feeds, "LARGE", 1)


def run_of(method, batch, clipping, device, seed=3, likelihood="Categorical"):
    """A run, ready to begin. Masks are drawn for padding too, with dropout every batch is all of them."""
    torch.manual_seed(0)
    draws_masks = isinstance(method, dpbnn.MCDropout)
    n = 16 * (batch["n"] // 16) if draws_masks else batch["n"]
    targets = makers.targets_of(likelihood)
    x, y = torch.randn(n, 5), targets.made(n, torch.Generator().manual_seed(0))
    levels = {"clip_norm": ((0.5, 6), (1.0, 6)), "noise_multiplier": ((2.0, 3), (1.0, 9))}
    size = n if draws_masks else batch["batch"]
    plan = dpbnn.PrivacyPlan(n, size, STEPS, **levels, delta=1e-5, clipping=clipping)
    micro = batch.get("micro_batch_size")
    execution = dpbnn.Execution(micro_batch_size=16 if draws_masks and micro else micro)
    run = prepared(
        network(draws_masks, device, targets.outputs),
        x,
        y,
        method,
        plan,
        makers.make_likelihood(likelihood),
        seed,
        execution=execution,
        unsafe_seed=seed,
    )
    records = ResidentRecords.of(run.work.records, torch.device(device))
    position = replace(run, work=replace(run.work, records=records)).begin()
    if method.begin_step(position.state, 0) is None:
        pytest.skip("this optimizer counts on the host, where it is not captured")
    return position


@cache
def network(draws_masks, device, outputs):
    torch.manual_seed(0)
    middle = nn.Dropout(0.3) if draws_masks else nn.Identity()
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), middle, Bare(6, outputs)).to(device)


class Bare(nn.Module):
    """A layer without a rule, whose gradients are written out for every record: large models take batches in parts."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.slopes, self.level = nn.Parameter(0.3 * torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.slopes + self.level


def eager(position):
    return EagerSteps([position.work], [position.state], 0)


def taken(steps, count, both):
    """All that is released in some steps, and the state after them; `both` at once shows nothing on the way."""
    released = []
    for step in range(count):
        if both:
            steps.release_and_take(step)
            continue
        noisy = steps.release(step)
        released.append({name: values.clone() for name, values in noisy[0].gradients.items()})
        steps.take(noisy, step)
    return released, steps.states[0]


def recorder_for(device):
    return Replays() if device == "cpu" else None


def assert_same_releases(first, second):
    for one, other in zip(first, second, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-4)


def assert_same_posterior(method, first, second):
    one, other = (method.to_posterior(state).tensors() for state in (first, second))
    names = ["mean." + name for name in one] if "directions" in str(one.keys()) else one.keys()
    for name in names:
        if name in one and "direction" not in name:  # whose signs are arbitrary
            torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


def pairs(of_batches):
    """Every method with every kind of batch, in all steps for the slow tests; one clipping style each for the fast."""
    found = []
    methods = [(f"{name} {index}", method) for name, own in CASES.items() for index, method in enumerate(own)]
    for first, (name, method) in enumerate(methods):
        for second, batch in enumerate(of_batches):
            for clipping in ("flat", "automatic"):
                is_fast = (first + second) % 2 == (clipping == "flat")
                how = {"id": f"{name}-{batch}-{clipping}", "marks": () if is_fast else pytest.mark.slow}
                found.append(pytest.param(method, batch, clipping, FEW_STEPS if is_fast else STEPS, **how))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("method", "batch", "clipping", "count"), pairs(BATCHES))
def test_captured_steps_are_the_eager_ones(method, batch, clipping, count, device):
    how = method, BATCHES[batch], clipping, device
    position = run_of(*how)
    steps = eager(position)
    if device == "cuda" and isinstance(method, dpbnn.MCDropout) and batch in OTHER_PARTS:
        steps = never_captured([position.work], [position.state])
    expected, state = taken(steps, count, both=False)
    for both in (False, True):
        again = run_of(*how)
        recorder = recorder_for(device)
        steps = CapturedSteps([again.work], [again.state], 0, recorder)
        released, reached = taken(steps, count, both)
        assert steps.how != EagerSteps.how
        if not both:
            assert_same_releases(expected, released)
        assert_same_posterior(method, state, reached)
        if recorder is not None:
            assert recorder.replayed > recorder.captured / 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("method", "batch", "clipping", "count"), pairs(["one part", "several sizes of parts"]))
def test_captured_runs_of_a_sweep_are_the_eager_ones(method, batch, clipping, count, device):
    """Their noise and masks come from one generator each, from run to run: the eager ones are given the same."""
    how = method, BATCHES[batch], clipping, device
    positions = [run_of(*how, seed=seed) for seed in SEEDS]
    masks_by_part = isinstance(method, dpbnn.MCDropout) and batch != "one part"  # of all runs, then for the next part
    if masks_by_part or device == "cuda":  # where the noise of all runs is drawn at once
        states = after(never_captured(*works_and_states(positions)), count)
    else:
        states = one_after_another(positions, count, torch.device(device))
    again = [run_of(*how, seed=seed) for seed in SEEDS]
    together = CapturedSteps(*works_and_states(again), 0, recorder_for(device))
    reached = after(together, count)
    assert together.how != EagerSteps.how
    for one, other in zip(states, reached, strict=True):
        assert_same_posterior(method, one, other)


def likelihoods_and_priors():
    """Every one that is registered, of either."""
    likelihoods, priors = list(makers.likelihood_forms()), makers.prior_kinds()
    pairs = zip(cycle(likelihoods), cycle(priors), range(max(len(likelihoods), len(priors))), strict=False)
    return [(likelihood, prior) for likelihood, prior, _ in pairs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("likelihood", "prior"), likelihoods_and_priors())
def test_every_likelihood_and_every_prior_is_captured_as_it_is_run(likelihood, prior, device):
    method = dpbnn.SGLD(1e-3, prior=makers.make_prior(prior))
    how = method, BATCHES["one part"], "flat", device, 3, likelihood
    expected, state = taken(eager(run_of(*how)), FEW_STEPS, both=False)
    again = run_of(*how)
    steps = CapturedSteps([again.work], [again.state], 0, recorder_for(device))
    released, reached = taken(steps, FEW_STEPS, both=False)
    assert steps.how != EagerSteps.how
    assert_same_releases(expected, released)
    assert_same_posterior(method, state, reached)


def after(steps, count):
    for step in range(count):
        steps.release_and_take(step)
    return steps.states


def works_and_states(positions):
    return [own.work for own in positions], [own.state for own in positions]


def one_after_another(positions, count, device):
    randomness = positions[0].work.randomness
    noise, masks = GraphNoise(randomness, device), {}
    shared = [replace(own.work, randomness=Shared(own.work.randomness, noise, randomness, masks)) for own in positions]
    steps = EagerSteps(shared, [own.state for own in positions], 0)
    for step in range(count):
        noise.begin(step)
        steps.release_and_take(step)
    return steps.states


class Shared(Randomness):
    """A run's batches, with the noise and the masks of a sweep."""

    def __init__(self, own, noise, of_masks, by_step):
        super().__init__(own.key, own.source)
        vars(self).update(noise=noise, of_masks=of_masks, by_step=by_step)

    def masks(self, step):
        return self.by_step.setdefault(step, self.of_masks.masks(step))

    def add_normals(self, tensors, scale, step):
        self.noise.add(tensors, 1.0, scale, step)
