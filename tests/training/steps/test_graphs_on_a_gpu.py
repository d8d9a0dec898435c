"""Captured steps on a CUDA device beside the same steps taken one by one."""

import math
import random

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpbnn
from dpbnn.audit.rounding import that_round_both_ways
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.training.steps.graphs import Graphs
from tests.training.steps.test_captured import sums_of

pytestmark = pytest.mark.gpu

N, B, STEPS = 500, 50, 40
PLAN = dpbnn.PrivacyPlan(N, B, STEPS, ((0.5, 15), (1.0, 25)), ((2.0, 22), (1.0, 18)), 1e-5)
METHODS = {
    "sgd": dpbnn.SGD(0.1, dpbnn.Gaussian(1.0)),
    "momentum": dpbnn.SGD(((0.1, 20), (0.05, 20)), momentum=0.9),
    "adam": dpbnn.SGD(0.01, optimizer="Adam"),
    "sgld": dpbnn.SGLD(1e-4, dpbnn.Laplace(1.0)),
    "sgld with a summary": dpbnn.SGLD(1e-4, keep_as=dpbnn.KeepSummary(rank=3)),
    "bbp": dpbnn.BBP(0.1, dpbnn.Laplace(1.0)),
    "joint bbp": dpbnn.BBP(0.1, form="joint", num_draws=2),
    "mc dropout": dpbnn.MCDropout(0.1),
}


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, 20, generator=generator), torch.randint(3, (N,), generator=generator)


def network(dropout=False):
    torch.manual_seed(1)
    middle = nn.Dropout(0.5) if dropout else nn.Identity()
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), middle, nn.Linear(16, 3)).cuda()


def fit(model, method, x=None, y=None, plan=PLAN, **options):
    if x is None:
        x, y = data()
    given = {"likelihood": dpbnn.Categorical(), "seed": 1, "unsafe_seed": 5, "progress": False} | options
    return dpbnn.fit(model, x, y, method=method, plan=plan, **given)


def draws(release):
    return list(release.posterior.draw(3, seed=0))


def agree(one, other, atol=1e-5):
    if one.posterior.kind == "low_rank_gaussian":  # the signs of its directions are arbitrary
        for name, values in one.posterior.mean.items():
            torch.testing.assert_close(values, other.posterior.mean[name], rtol=1e-3, atol=atol)
        return
    for first, second in zip(draws(one), draws(other), strict=True):
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=atol)


@pytest.mark.filterwarnings("ignore::dpbnn.DpbnnWarning")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_captured_steps_are_those_taken_one_by_one(method):
    dropout = isinstance(method, dpbnn.MCDropout)
    captured = fit(network(dropout), method)
    plain = fit(network(dropout), method, execution=dpbnn.Execution(graphs=False))
    assert captured.settings["steps_taken"].startswith("captured")
    assert plain.settings["steps_taken"] == "one by one"
    if not dropout:  # masks are drawn for padding too
        agree(captured, plain)


@pytest.mark.parametrize("precision", [None, "tf32", "bfloat16"])
@pytest.mark.parametrize("kind", ["MLP", "CNN"])
def test_streams_of_a_capture_do_not_disturb_each_other(kind, precision):
    """Memory that is used again too early shows as garbage; several runs, as it shows now and then."""
    x, y = torch.randn(300, 1, 28, 28), torch.randint(10, (300,))
    plan = dpbnn.PrivacyPlan(300, 60, 30, 1.0, 0.1, 1e-5)
    for _ in range(3):
        torch.manual_seed(0)
        if kind == "MLP":
            model = nn.Sequential(nn.Flatten(), dpbnn.networks.MLP(784, [300, 200, 100], 10)).cuda()
        else:
            model = dpbnn.networks.CNN(activation="tanh").cuda()
        exact = {"precision": precision, "graphs": False}
        plain = fit(model, dpbnn.SGD(0.05), x, y, plan, execution=dpbnn.Execution(**exact))
        captured = fit(model, dpbnn.SGD(0.05), x, y, plan, execution=dpbnn.Execution(precision=precision))
        assert captured.settings["steps_taken"].startswith("captured")
        agree(captured, plain, atol=1e-3 if precision else 1e-4)


@pytest.mark.parametrize("options", [{"micro_batch_size": 7}, {"data_on_device": False}, {"data_on_device": True}])
def test_small_parts_and_data_elsewhere_give_the_same(options):
    plain = fit(network(), METHODS["sgd"], execution=dpbnn.Execution(graphs=False))
    agree(fit(network(), METHODS["sgd"], execution=dpbnn.Execution(**options)), plain)


def test_a_dataset_is_read_ahead_and_gives_the_same():
    plain = fit(network(), METHODS["sgd"], execution=dpbnn.Execution(graphs=False))
    agree(fit(network(), METHODS["sgd"], TensorDataset(*data())), plain)


def test_batches_beyond_one_part_in_float64_give_the_same():
    x, y = torch.randn(6000, 20), torch.randint(3, (6000,))
    plan = dpbnn.PrivacyPlan(6000, 5000, 6, 1.0, 1.0, 1e-5)
    plain = fit(network(), METHODS["sgd"], x, y, plan, execution=dpbnn.Execution(graphs=False))
    agree(fit(network(), METHODS["sgd"], x, y, plan), plain)


@pytest.mark.parametrize(
    ("count", "part", "micro_batch_size"), [(20_000, 4080, None), (262_144, 4096, None), (65_536, 512, 512)]
)
def test_the_sums_of_replayed_parts_are_not_rounded_before_the_noise(count, part, micro_batch_size):
    plan = dpbnn.PrivacyPlan(count, count, 2, 1.0, 1e-9, 1e-5)
    values = that_round_both_ways(count, part)
    both = [sums_of(own, plan, None, micro_batch_size, "cuda") for own in (values, values[1:])]
    assert float(both[0] - both[1]) == pytest.approx(float(values[0]), abs=1e-7)


@pytest.mark.parametrize("rows", [0, 1])
def test_empty_and_tiny_data_are_captured(rows):
    x, y = (part[:rows] for part in data())
    plain = fit(network(), METHODS["sgd"], x, y, execution=dpbnn.Execution(graphs=False))
    agree(fit(network(), METHODS["sgd"], x, y), plain)


def test_records_that_are_not_finite_contribute_zero():
    x, y = data()
    keep = torch.arange(N) % 3 != 0
    bad = torch.where(keep[:, None], x, math.nan)
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 1e-6, 1e-5)
    release = fit(network(), METHODS["sgd"], bad, y, plan)
    assert all(values.isfinite().all() for values in draws(release)[0].values())


class Decides(nn.Module):
    """A network that decides something on the host, in one way or another."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.dropout, self.how, self.calls = nn.Linear(20, 3), nn.Dropout(0.1), how, 0

    def forward(self, x):
        if self.how == "by a value" and float(self.layer.weight.detach().sum()) > 1e9:
            x = 2 * x
        if self.how == "by chance":
            x = x * (1 if random.random() < 2 else 2)
        return self.layer(self.dropout(x))


@pytest.mark.parametrize("how", ["by a value", "by chance"])
def test_a_model_that_decides_on_the_host_is_not_captured_and_trains_all_the_same(how):
    with pytest.warns(dpbnn.DpbnnWarning, match="one by one, which is slower"):
        release = fit(Decides(how).cuda(), METHODS["sgd"])
    assert release.settings["steps_taken"] == "one by one"
    assert release.settings["releases_charged"] == STEPS
    torch.rand(2, device="cuda")  # torch's own generator is as usable as before


def test_an_optimizer_that_counts_on_the_host_is_not_captured():
    with pytest.warns(dpbnn.DpbnnWarning, match="counts on the host"):
        release = fit(network(), dpbnn.SGD(0.01, optimizer="Adagrad", options={"lr_decay": 0.1}))
    plain = fit(
        network(),
        dpbnn.SGD(0.01, optimizer="Adagrad", options={"lr_decay": 0.1}),
        execution=dpbnn.Execution(graphs=False),
    )
    agree(release, plain)


def test_replayed_noise_is_that_of_its_step_and_never_repeats():
    device = torch.device("cuda", 0)
    own = Randomness.from_seed(3)
    noise = GraphNoise(own, device)
    graphs, place = Graphs(device, [noise.device_generator]), torch.zeros(10_001, device=device)
    noise.begin(0)
    with graphs.capture(lambda: 0) as graph:
        place.zero_()
        noise.add([place], 1.0, 1.0, 0)
    seen = []
    for step in (0, 1, 2, 0):
        noise.begin(step)
        graph.replay()
        alone = torch.zeros_like(place)
        own.add_normals([alone], 1.0, step)
        assert torch.equal(place, alone)
        seen.append(place.clone())
    assert torch.equal(seen[0], seen[3])
    assert torch.corrcoef(torch.stack(seen[:3])).triu(1).abs().max() < 0.06
    graph.replay()  # even without a new seed
    assert not torch.equal(place, seen[3])


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_a_faster_precision_is_close_and_releases_float32(precision):
    torch.manual_seed(0)
    x, y = data()
    checked = dpbnn.check_model(network(), dpbnn.Categorical(), x.cuda(), y.cuda())
    from dpbnn.clipping import ClippingSettings, clip_and_sum

    weights = checked.objective.model_weights()
    exact = clip_and_sum(checked, weights, x.cuda(), y.cuda(), ClippingSettings(0.5))
    faster = clip_and_sum(checked, weights, x.cuda(), y.cuda(), ClippingSettings(0.5, precision=precision))
    for name, values in faster.gradients.items():
        assert values.dtype == torch.float32
        error = (values - exact.gradients[name]).norm() / exact.gradients[name].norm()
        assert error < 0.02
    release = fit(network(), METHODS["sgd"], execution=dpbnn.Execution(precision=precision))
    assert release.settings["steps_taken"].startswith("captured")


@pytest.mark.filterwarnings("ignore::dpbnn.DpbnnWarning")
def test_many_runs_at_once_are_the_single_ones(monkeypatch):
    seeds = iter(range(100))
    monkeypatch.setattr(Randomness, "from_operating_system", staticmethod(lambda: Randomness.from_seed(next(seeds))))
    plan = dpbnn.PrivacyPlan(N, B, STEPS, 1.0, 1e-6, 1e-5)
    setups = [
        dpbnn.Setup(network(), method, plan, dpbnn.Categorical(), seed=1)
        for method in (dpbnn.SGD(0.1), dpbnn.SGD(0.3), dpbnn.BBP(0.1), dpbnn.SGLD(1e-4, temperature=None))
    ]
    together = dpbnn.fit_many(setups, *data(), progress=False)
    assert all(release.settings["steps_taken"].startswith("captured") for release in together)
    for seed, (setup, release) in enumerate(zip(setups, together, strict=True)):
        alone = fit(setup.model, setup.method, plan=plan, unsafe_seed=seed)
        agree(release, alone, atol=1e-4)


@pytest.mark.filterwarnings("ignore::dpbnn.DpbnnWarning")
def test_an_interrupted_captured_run_resumes(tmp_path, monkeypatch):
    from dpbnn.training import loop as training

    whole = fit(network(), METHODS["sgld"])
    calls, original = [0], training.fingerprint

    def interrupted(noisy):
        calls[0] += 1
        if calls[0] == 25:
            raise KeyboardInterrupt
        return original(noisy)

    monkeypatch.setattr(training, "fingerprint", interrupted)
    settings = {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=0)}
    with pytest.raises(KeyboardInterrupt):
        fit(network(), METHODS["sgld"], **settings)
    resumed = fit(network(), METHODS["sgld"], **settings)
    assert resumed.settings["releases_charged"] in (STEPS, STEPS + 1)
    agree(resumed, whole, atol=1e-4)
