"""A noise source from outside: one class behind the protocol and one line in the registry."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import dpbnn
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.source import NOISE_SOURCES, StandardNoise
from dpbnn.training import loop
from dpbnn.training.steps import CapturedSteps
from dpbnn.types import ClippedSum
from tests.extending import skeleton
from tests.training import test_fit
from tests.training.checkpoint.interrupting import Interrupt, interrupt_at
from tests.training.steps.replay import Replays

PLAN = dpbnn.PrivacyPlan(60, 20, 8, clip_norm=1.0, noise_multiplier=1.5, delta=1e-3)
X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


@pytest.fixture
def grid():
    """Registered while the test runs."""
    module = skeleton("A noise source")
    NOISE_SOURCES["grid"] = module.GridNoise
    yield module
    del NOISE_SOURCES["grid"]


def fit(noise="grid", **options):
    torch.manual_seed(0)
    settings = {"method": dpbnn.SGD(0.1), "plan": PLAN, "likelihood": dpbnn.Categorical(), "progress": False}
    settings |= {"execution": dpbnn.Execution(noise=noise, checkpoint_seconds=0), "unsafe_seed": 3}
    return dpbnn.fit(nn.Linear(4, 3), X, Y, **settings | options)


def same(one, other):
    return all(torch.equal(values, other.posterior.weights[name]) for name, values in one.posterior.weights.items())


def test_its_noise_is_normal_with_the_right_deviation_and_lies_on_the_grid(grid):
    def noise(step):
        sums = {"w": torch.full((30_000,), 0.7, dtype=torch.float64), "b": torch.full((10,), -0.3)}
        noisy = add_noise(ClippedSum(sums, 2.0), 1.5, grid.GridNoise(Randomness.from_seed(0)), step).gradients
        return noisy["w"].numpy()

    first = noise(0)
    assert stats.kstest(first, stats.norm(0.7, 3.0).cdf).pvalue > 1e-6
    assert stats.kstest(first, stats.norm(0.7, 2.8).cdf).pvalue < 1e-6
    cells = first / 2.0 ** math.floor(math.log2(3.0 / grid.CELLS))
    assert np.array_equal(cells, cells.round())
    assert np.array_equal(first, noise(0))
    assert abs(np.corrcoef(first, noise(1))[0, 1]) < 5 / 30_000**0.5


def test_it_sees_the_exact_sums_the_sensitivity_the_deviation_and_the_step(monkeypatch):
    seen = []

    class Watching:
        source = "nothing at all"

        def __init__(self, randomness):
            pass

        def add(self, sums, sensitivity, std, step):
            seen.append(([values.clone() for values in sums], sensitivity, std, step))

        def in_graphs(self, device):
            return None

    monkeypatch.setitem(NOISE_SOURCES, "watching", Watching)
    sums = {"b": torch.tensor([2.0]), "a": torch.tensor([1.0, 0.5])}
    add_noise(ClippedSum(dict(sums), 4.0), 1.5, Watching(None), 7)
    assert [values.tolist() for values in seen[0][0]] == [[1.0, 0.5], [2.0]]
    assert seen[0][1:] == (4.0, 6.0, 7)
    fit("watching")
    assert [(sensitivity, std, step) for _, sensitivity, std, step in seen[1:]] == [(1.0, 1.5, i) for i in range(8)]


def test_a_run_draws_from_it_and_its_guarantee_names_it(grid):
    release = fit(unsafe_seed=None)
    assert release.guarantee.holds
    words = "noise: Gaussian noise rounded to a grid (of the module extending_a_noise_source, which is not part of"
    assert words in str(release.guarantee)
    assert "noise:" not in str(fit("standard").guarantee.random_source)
    assert same(fit(), fit())
    assert not same(fit(), fit("standard"))
    assert not same(fit(), fit(unsafe_seed=4))


def test_captured_steps_leave_a_gap_for_it(grid, monkeypatch):
    recorder, eager = Replays(), fit()
    monkeypatch.setattr(loop, "why_not_captured", lambda *_: None)
    monkeypatch.setattr(loop, "CapturedSteps", partial(CapturedSteps, graphs=recorder))
    captured = fit()
    assert recorder.replayed > 0
    for name, values in eager.posterior.weights.items():
        torch.testing.assert_close(captured.posterior.weights[name], values)


def test_a_resumed_run_draws_the_same_and_goes_on_with_the_same_source_alone(grid, monkeypatch, tmp_path):
    run = partial(test_fit.fit, execution=dpbnn.Execution(noise="grid", checkpoint_seconds=0))
    for name in ("one", "two"):
        with monkeypatch.context() as patch:
            interrupt_at(patch, 4)
            with pytest.raises(Interrupt):
                run(checkpoint=tmp_path / name)
    assert same(run(), run(checkpoint=tmp_path / "one"))
    with pytest.raises(DpbnnError, match="the noise source"):
        run(checkpoint=tmp_path / "two", execution=dpbnn.Execution())


def test_a_source_that_is_not_registered_is_refused_with_the_names_of_those_that_are():
    with pytest.raises(DpbnnError, match="noise must be one of 'standard', got 'grid'"):
        fit()


def test_a_source_that_wraps_the_standard_one_is_named_too(monkeypatch):
    """Its key may be anybody's: what matters is who made the source, not which class it is in the end."""
    monkeypatch.setitem(NOISE_SOURCES, "wrapped", lambda _: StandardNoise(Randomness(bytes(32))))
    release = fit("wrapped", unsafe_seed=None)
    assert f"(of the module {__name__}, which is not part of dpbnn)" in str(release.guarantee)


def test_a_source_that_returns_noisy_sums_in_place_of_writing_them_is_refused(monkeypatch):
    class Returning(StandardNoise):
        def add(self, sums, sensitivity, std, step):
            return [values + std * torch.randn_like(values) for values in sums]

    monkeypatch.setitem(NOISE_SOURCES, "returning", Returning)
    with pytest.raises(TypeError, match=r"Returning.add must write noisy sums over the exact ones and return None\."):
        fit("returning")
