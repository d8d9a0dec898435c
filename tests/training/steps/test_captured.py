"""Captured steps on a CPU, where a graph is a list of operations: what Python had settled stays as it was captured."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import dpbnn
from dpbnn.audit.rounding import that_round_both_ways
from dpbnn.data.records import ResidentRecords
from dpbnn.methods import Method
from dpbnn.posterior import PointEstimate
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.training.run import prepared
from dpbnn.training.steps import CapturedSteps, EagerSteps
from dpbnn.training.steps.graphs import NotCapturable
from tests.training.steps.replay import Replays, never_captured

METHODS = {
    "sgd": dpbnn.SGD(0.1, dpbnn.Gaussian(0.5)),
    "sgd with momentum": dpbnn.SGD(0.1, momentum=0.9),
    "sgd with a schedule": dpbnn.SGD(((0.1, 5), (0.05, 7))),
    "sgld": dpbnn.SGLD(1e-3, dpbnn.Gaussian(1.0)),
    "sgld with a summary": dpbnn.SGLD(1e-3, dpbnn.Laplace(1.0), keep_as=dpbnn.KeepSummary(rank=2)),
    "bbp": dpbnn.BBP(0.1, dpbnn.Gaussian(1.0)),
    "joint bbp": dpbnn.BBP(0.1, dpbnn.Laplace(1.0), form="joint", num_draws=2),
}
STEPS, N, B = 12, 200, 20


def work_for(method, plan=None, records=N, seed=3, **execution):
    torch.manual_seed(0)
    x, y = torch.randn(records, 5), torch.randint(3, (records,))
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    plan = plan or dpbnn.PrivacyPlan(N, B, STEPS, ((0.5, 4), (1.0, 8)), ((2.0, 6), (1.0, 6)), 1e-5)
    run = prepared(
        model, x, y, method, plan, dpbnn.Categorical(), seed, execution=dpbnn.Execution(**execution), unsafe_seed=seed
    )
    return run, run.begin()


def eager(position):
    return EagerSteps([position.work], [position.state], 0)


def captured(position, graphs=None):
    """With the records on the device."""
    return CapturedSteps([resident(position.work)], [position.state], 0, graphs or Replays())


def released(steps, count=STEPS):
    """All that some steps release, and the state after them."""
    found = []
    for step in range(count):
        noisy = steps.release(step)
        found.append({name: values.clone() for name, values in noisy[0].gradients.items()})
        steps.take(noisy, step)
    return found, steps.states[0]


def resident(work):
    return replace(work, records=ResidentRecords.of(work.records, torch.device("cpu")))


@pytest.mark.guarantees("Captured steps release what eager steps release, but for rounding, from the same key.")
@pytest.mark.filterwarnings("ignore::dpbnn.DpbnnWarning")
@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_captured_steps_release_what_steps_taken_one_by_one_release(method, on_device):
    _, position = work_for(method)
    expected, state = released(eager(position))
    _, position = work_for(method)
    recorder = Replays()
    work = resident(position.work) if on_device else position.work
    found, other = released(CapturedSteps([work], [position.state], 0, recorder))
    assert recorder.replayed >= 3 * (STEPS - 2)
    assert recorder.captured < recorder.replayed
    for one, another in zip(expected, found, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], another[name], rtol=1e-4, atol=1e-5)
    _, position = work_for(method)
    steps = captured(position)
    for step in range(STEPS):
        steps.release_and_take(step)
    for final in (other, steps.states[0]):
        same_posterior(method, state, final)


def same_posterior(method, state, other):
    if isinstance(method.to_posterior(state), dpbnn.posterior.LowRankGaussian):  # its directions' signs are arbitrary
        for name, mean in method.to_posterior(state).mean.items():
            torch.testing.assert_close(mean, method.to_posterior(other).mean[name], rtol=1e-3, atol=1e-4)
        return
    draws = zip(method.to_posterior(state).draw(5, seed=0), method.to_posterior(other).draw(5, seed=0), strict=True)
    for one, another in draws:
        for name in one:
            torch.testing.assert_close(one[name], another[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("micro_batch_size", [3, 16, None])
def test_a_batch_larger_than_a_part_is_done_in_several_exactly(micro_batch_size):
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 1e-6, 1e-5)
    _, position = work_for(dpbnn.SGD(0.1), plan)
    expected, _ = released(eager(position))
    _, position = work_for(dpbnn.SGD(0.1), plan, micro_batch_size=micro_batch_size)
    found, _ = released(captured(position))
    for one, another in zip(expected, found, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], another[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("records", [0, 1, 5])
def test_empty_and_tiny_data_take_steps_like_any_other(records):
    _, position = work_for(dpbnn.SGD(0.1), records=records)
    expected, _ = released(eager(position))
    _, position = work_for(dpbnn.SGD(0.1), records=records)
    found, _ = released(captured(position))
    for one, another in zip(expected, found, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], another[name], rtol=1e-4, atol=1e-5)


def test_every_step_has_noise_of_its_own():
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 5.0, 1e-5)
    _, position = work_for(dpbnn.SGD(1e-9), plan, records=0)
    found, _ = released(captured(position))
    noise = torch.stack([torch.cat([v.flatten() for v in one.values()]) for one in found])
    correlation = torch.corrcoef(noise)
    assert (correlation - torch.eye(STEPS)).abs().max() < 0.6  # 66 numbers in each row
    assert abs(float(noise.std()) - 5.0) < 0.5


@pytest.mark.guarantees("The releases are those of single runs, but for rounding.")
def test_runs_that_are_captured_together_are_independent_and_right():
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 1e-6, 1e-5)
    seeds = (3, 4, 5)
    expected = []
    for seed in seeds:
        _, position = work_for(dpbnn.SGD(0.1 * seed), plan, seed=seed)
        expected.append(released(eager(position))[1])
    positions = [work_for(dpbnn.SGD(0.1 * seed), plan, seed=seed)[1] for seed in seeds]
    works, states = [resident(position.work) for position in positions], [position.state for position in positions]
    steps = CapturedSteps(works, states, 0, Replays())
    for step in range(STEPS):
        steps.release_and_take(step)
    for state, own in zip(steps.states, expected, strict=True):
        for name, values in state.weights.items():
            torch.testing.assert_close(values, own.weights[name], rtol=1e-4, atol=1e-4)


def test_noise_of_runs_that_are_captured_together_differs():
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 5.0, 1e-5)
    positions = [work_for(dpbnn.SGD(0.1), plan, seed=3, records=0)[1] for _ in range(2)]
    works, states = [resident(position.work) for position in positions], [position.state for position in positions]
    steps = CapturedSteps(works, states, 0, Replays())
    steps.release_and_take(0)
    first, second = steps.states
    assert not any(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_runs_draw_the_same_noise_in_one_graph_in_several_and_without_any(monkeypatch):
    """As on a CUDA device, where the noise of all runs is drawn at once."""
    monkeypatch.setattr(GraphNoise, "_draws_on_device", True)
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 5.0, 1e-5)

    def reached(make, both):
        positions = [work_for(dpbnn.SGD(0.1), plan, seed=seed)[1] for seed in (3, 4, 5)]
        works, states = [resident(position.work) for position in positions], [position.state for position in positions]
        steps = make(works, states)
        for step in range(STEPS):
            steps.release_and_take(step) if both else steps.take(steps.release(step), step)
        return [state.weights for state in steps.states]

    expected = reached(never_captured, both=True)
    for both in (True, False):
        for own, other in zip(expected, reached(replayed, both), strict=True):
            for name, values in own.items():
                torch.testing.assert_close(values, other[name], rtol=1e-4, atol=1e-4)


def replayed(works, states):
    return CapturedSteps(works, states, 0, Replays())


class Refuses(Replays):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def capture(self, host_state):
        if self.captured == self.at:
            raise NotCapturable("it decides on the host")
        return super().capture(host_state)


@pytest.mark.guarantees("What cannot be captured is taken one by one, and the release says so.")
@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
def test_what_cannot_be_captured_goes_on_one_by_one_and_says_so(at):
    method = METHODS["sgld"]
    _, position = work_for(method)
    expected, state = released(eager(position))
    _, position = work_for(method)
    steps = captured(position, Refuses(at))
    with pytest.warns(dpbnn.DpbnnWarning, match="one by one, which is slower: it decides on the host"):
        found, other = released(steps)
    assert steps.how == ("one by one" if at < 3 else "captured and replayed (CUDA graphs)")  # at first, or later on
    for one, another in zip(expected, found, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], another[name], rtol=1e-4, atol=1e-5)
    for name in state.weights:
        torch.testing.assert_close(state.weights[name], other.weights[name], rtol=1e-4, atol=1e-5)
    assert state.store.count == other.store.count


@pytest.mark.parametrize("micro_batch_size", [None, 7])
@pytest.mark.parametrize("at", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2)), 3, 4, 5])
def test_how_steps_were_taken_does_not_tell_how_large_batches_were(monkeypatch, at, micro_batch_size):
    """There is no room for so many graphs, and half of all batches need a second part, or parts of another size."""
    monkeypatch.setattr("dpbnn.training.steps.feeds.DEVIATIONS", 0.0)
    plan, found = dpbnn.PrivacyPlan(N, B, 2, 1.0, 1.0, 1e-5), {}
    for seed in range(8):
        _, position = work_for(dpbnn.SGD(0.1), plan, seed=seed, micro_batch_size=micro_batch_size)
        steps = captured(position, Refuses(at))
        with warnings.catch_warnings(action="ignore"):
            for step in range(2):
                steps.release_and_take(step)
        found[steps.how] = found.get(steps.how, 0) + 1
    of_every_run = 4 if micro_batch_size is None else 3
    assert found == {"one by one" if at < of_every_run else "captured and replayed (CUDA graphs)": 8}


@pytest.mark.guarantees("Padding contributes exactly zero.")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_padding_and_bad_records_contribute_exactly_zero(bad):
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 1e-6, 1e-5)
    _, position = work_for(dpbnn.SGD(1e-9), plan)
    work = resident(position.work)
    work.records.x[::2] = bad
    (noisy,) = CapturedSteps([work], [position.state], 0, Replays()).release(0)
    assert all(values.isfinite().all() for values in noisy.gradients.values())


class Augmented(Dataset):
    """Draws when it is read."""

    def __init__(self):
        self.drawn = []

    def __len__(self):
        return 50

    def __getitem__(self, index):
        self.drawn.append(float(torch.rand(())))
        return torch.ones(5) * self.drawn[-1], index % 3


def draws_of_a_dataset(key, is_captured):
    data, plan = Augmented(), dpbnn.PrivacyPlan(50, 50, 6, 1.0, 2.0, 1e-3)
    run = prepared(nn.Linear(5, 3), data, None, dpbnn.SGD(0.1), plan, dpbnn.Categorical(), 7, unsafe_seed=key)
    position = run.begin()
    steps = CapturedSteps([position.work], [position.state], 0, Replays()) if is_captured else eager(position)
    found = []
    for step in range(6):
        data.drawn.clear()
        steps.release_and_take(step)
        found.append(tuple(data.drawn))
    return found


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_dataset_draws_from_the_secret_key_not_from_the_users_seed(is_captured):
    first, again, other = (draws_of_a_dataset(key, is_captured) for key in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)
    assert len(set(first)) == 6


@pytest.mark.parametrize("micro_batch_size", [*(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2)), 64])
def test_parts_are_added_up_so_that_no_record_moves_the_sum_by_more_than_the_clip_norm(micro_batch_size):
    """One record lifts the sum over a power of two; in float32 all that come after it would round otherwise."""
    n, big = 2200, 512
    x, y = torch.ones(n, 1), torch.full((n, 1), 0.3 * 2.0**-14)
    y[: big + 1] = -1.0
    keep = torch.arange(n) != big

    def total(x, y):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        plan = dpbnn.PrivacyPlan(n, n, 1, 1.0, 1e-9, 1e-5)
        likelihood = dpbnn.HomoscedasticGaussian(noise_std=1.0)
        execution = dpbnn.Execution(micro_batch_size=micro_batch_size)
        run = prepared(model, x, y, dpbnn.SGD(0.1), plan, likelihood, 3, execution=execution, unsafe_seed=3)
        position = run.begin()
        return float(captured(position).release(0)[0].gradients["weight"].double())

    assert 0.99 <= total(x, y) - total(x[keep], y[keep]) <= 1.0 + 1e-6


def sums_of(values, plan, recorder=None, micro_batch_size=None, device="cpu"):
    """What is captured, of records whose gradients are these values, before it is rounded to be released."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    y = -values.float()[:, None]
    execution = dpbnn.Execution(micro_batch_size=micro_batch_size)
    likelihood, method = dpbnn.HomoscedasticGaussian(noise_std=1.0), dpbnn.SGD(1e-30)
    run = prepared(model, torch.ones_like(y), y, method, plan, likelihood, 3, device, execution, unsafe_seed=3)
    position = run.begin()
    records = ResidentRecords.of(position.work.records, torch.device(device))
    steps = CapturedSteps([replace(position.work, records=records)], [position.state], 0, recorder)
    released(steps, count=2)
    assert steps.how.startswith("captured")
    return steps._rooms[0].sums["weight"]


@pytest.mark.parametrize(
    ("count", "part", "micro_batch_size"),
    [
        (20_000, 4080, None),
        (65_536, 4096, None),
        (65_536, 1024, 1024),
        pytest.param(262_144, 4096, None, marks=pytest.mark.slow),
    ],
)
def test_the_sums_of_captured_parts_are_not_rounded_before_the_noise(count, part, micro_batch_size):
    """Stored in float32, the sums of all parts would round up with the first record and down without it."""
    plan = dpbnn.PrivacyPlan(count, count, 2, 1.0, 1e-9, 1e-5)
    values = that_round_both_ways(count, part)
    both = [sums_of(own, plan, Replays(), micro_batch_size) for own in (values, values[1:])]
    assert both[0].dtype == torch.float64
    assert float(both[0] - both[1]) == pytest.approx(float(values[0]), abs=1e-7)  # the noise is 1e-9
    assert 0.99 <= float(both[0] - both[1]) <= 1.0


@pytest.mark.parametrize("micro_batch_size", [64, 512])
def test_captured_parts_of_few_records_are_stored_in_float32_once(micro_batch_size):
    """The sums of parts, each rounded to float32, would add up to another number."""
    plan = dpbnn.PrivacyPlan(4096, 4096, 2, 1.0, 1e-12, 1e-5)
    values = that_round_both_ways(4096, micro_batch_size)
    assert float(sums_of(values, plan, Replays(), micro_batch_size)) == float(values.sum())


@dataclass
class Moving:
    weights: dict
    velocity: Any
    last: dict
    plan: dpbnn.PrivacyPlan


@dataclass(frozen=True)
class Momentum(Method[Moving]):
    """Momentum as users might write it: each `way` lets Python, or the released tensors, carry something over."""

    way: str

    def init(self, weights, plan, seed):
        zeros = {name: torch.zeros_like(values) for name, values in weights.items()}
        velocity = list(zeros.values()) if self.way == "a new list" else zeros
        return Moving({name: values.clone() for name, values in weights.items()}, velocity, dict(zeros), plan)

    def begin_step(self, state, step):
        return step % 2 if self.way == "a new dict in later steps" else 0

    def weights(self, state, step):
        return {name: values - 0.1 * state.last[name] / B for name, values in state.weights.items()}

    def update(self, state, noisy, step):
        names, old = list(state.weights), state.velocity
        new = [
            0.9 * old[k if self.way == "a new list" else name] + noisy.gradients[name] for k, name in enumerate(names)
        ]
        if self.way == "a new list":
            state.velocity = new
        elif self.way == "a new dict" or (self.way == "a new dict in later steps" and step % 2):
            state.velocity = dict(zip(names, new, strict=True))
        elif self.way == "new values in a dict":
            state.velocity.update(zip(names, new, strict=True))
        else:
            for name, values in zip(names, new, strict=True):
                state.velocity[name].copy_(values)
        if self.way == "the released sum":
            state.last = noisy.gradients
        for name, values in zip(names, new, strict=True):
            state.weights[name].sub_(values, alpha=0.1 / B)
        return state

    def to_posterior(self, state):
        return PointEstimate(state.weights)


def take_all(steps, both):
    for step in range(STEPS):
        steps.release_and_take(step) if both else steps.take(steps.release(step), step)


CARRIED = ["a new list", "a new dict", "a new dict in later steps", "new values in a dict", "the released sum"]


@pytest.mark.guarantees("What cannot be captured is taken one by one, and the release says so.")
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("way", CARRIED)
def test_what_an_update_hands_on_by_python_is_noticed_and_nothing_of_a_refused_capture_is_left(way, both):
    """Noise is large, so that a sum without it would show in the state."""
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 100.0, 1e-5)
    _, position = work_for(Momentum(way), plan)
    _, expected = released(eager(position))
    _, position = work_for(Momentum(way), plan)
    steps = captured(position)
    with pytest.warns(dpbnn.DpbnnWarning, match="one by one, which is slower: "):
        take_all(steps, both)
    if way != "a new dict in later steps":  # which is found out when they are captured
        assert steps.how == "one by one"
    for name, values in expected.weights.items():
        torch.testing.assert_close(values, steps.states[0].weights[name], rtol=1e-4, atol=1e-4)


def test_an_update_in_place_is_captured():
    _, position = work_for(Momentum("in place"))
    _, expected = released(eager(position))
    _, position = work_for(Momentum("in place"))
    steps = captured(position)
    _, state = released(steps)
    assert steps.how.startswith("captured")
    for name, values in expected.weights.items():
        torch.testing.assert_close(values, state.weights[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("micro_batch_size", [None, 1, 7])
def test_no_part_of_a_sum_lies_where_a_release_does_before_it_has_its_noise(micro_batch_size):
    """A method that keeps a release, out of sight, would take the gradients of later parts there."""
    rooms, seen = [], []

    class Looking(dpbnn.SGD):
        def weights(self, state, step):
            seen.extend(torch.cat([values.flatten() for values in room.noisy.gradients.values()]) for room in rooms)
            return super().weights(state, step)

    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 1e6, 1e-5)
    _, position = work_for(Looking(1e-9), plan, micro_batch_size=micro_batch_size)
    steps = never_captured([resident(position.work)], [position.state])
    rooms += steps._rooms
    for step in range(4):
        seen.clear()
        steps.release(step)
        assert seen
        bits = [values.view(torch.int32) for values in seen]  # the first step finds whatever was in memory, NaN too
        assert all(torch.equal(values, bits[0]) for values in bits)
        assert step == 0 or float(seen[0].std()) > 1e5
