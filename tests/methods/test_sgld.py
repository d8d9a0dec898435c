"""DP-SGLD samples from the right posterior, at the right temperature, for the right privacy cost."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.methods.descent import of_network
from dpbnn.schedule import value_at

pytestmark = pytest.mark.filterwarnings("ignore:The .* kept samples")

# Bayesian linear regression. Every output of the network has the same targets: as many independent chains as outputs.
N, D, CHAINS = 40, 3, 400
NOISE, SCALE = 0.5, 1.0
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
RESIDUALS = torch.randn(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TARGET = X @ torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64) + RESIDUALS
Y = TARGET[:, None].expand(N, CHAINS)
PRECISION = X.T @ X / NOISE**2 + torch.eye(D, dtype=torch.float64) / SCALE**2
MEAN = torch.linalg.solve(PRECISION, X.T @ TARGET / NOISE**2)
RATE = 0.2 / float(torch.linalg.eigvalsh(PRECISION).max())
STEPS = 400


def sample(method, plan):
    """All kept samples of all chains, ``[samples, D]``."""
    model = nn.Linear(D, CHAINS, bias=False).double()
    nn.init.zeros_(model.weight)
    options = {"likelihood": dpbnn.HomoscedasticGaussian(NOISE), "unsafe_seed": 4, "seed": 1}
    release = dpbnn.fit(model, X, Y, method=method, plan=plan, **options)
    return release.posterior.samples["weight"].reshape(-1, D)


@functools.cache
def expected_covariance(temperature, rate=RATE, batch_size=N):
    """The stationary covariance of the discretised chain, minibatch noise of Poisson sampling included: exact.

    S = (I - eta P) S (I - eta P) + 2 eta tau I + eta^2 (1/q - 1) sum_i E[g_i g_i']
    """
    q, identity = batch_size / N, torch.eye(D, dtype=torch.float64)
    shrink = identity - rate * PRECISION
    covariance = temperature * torch.linalg.inv(PRECISION)
    residual = X @ MEAN - TARGET
    for _ in range(3000):
        spread = residual.square() + ((X @ covariance) * X).sum(dim=1)
        gradients = (X * (spread / NOISE**4)[:, None]).T @ X
        covariance = (
            shrink @ covariance @ shrink + 2 * rate * temperature * identity + rate**2 * (1 / q - 1) * gradients
        )
    return covariance


def recovers(samples, temperature, **settings):
    """Whether mean and covariance agree with the expectation: within 0.05 standard deviations and 12 %."""
    covariance = torch.from_numpy(np.cov(samples.T.numpy()))
    expected = expected_covariance(temperature, **settings)
    root = torch.linalg.cholesky(torch.linalg.inv(expected))
    whitened = root.T @ covariance @ root
    mean_is_right = bool(((samples.mean(dim=0) - MEAN) @ root).norm() < 0.05)
    covariance_is_right = bool(torch.linalg.matrix_norm(whitened - torch.eye(D, dtype=torch.float64), 2) < 0.12)
    return mean_is_right, covariance_is_right


FULL_BATCH = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=N, steps=STEPS)
PRIOR = dpbnn.Gaussian(SCALE)
LARGE_CLIP = 1e6
"""Far above every gradient's norm."""
HARDLY_ANY_NOISE = dpbnn.PrivacyPlan(N, N, STEPS, clip_norm=LARGE_CLIP, noise_multiplier=1e-9, delta=1e-3)


@pytest.mark.parametrize("plan", [FULL_BATCH, HARDLY_ANY_NOISE], ids=["without privacy", "under privacy noise"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_full_batch_chains_recover_mean_and_covariance_at_their_temperature(plan, temperature):
    samples = sample(dpbnn.SGLD(RATE, PRIOR, temperature), plan)
    assert recovers(samples, temperature) == (True, True)
    assert recovers(samples, 2 * temperature)[1] is False
    assert recovers(samples, temperature / 2)[1] is False


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_noise_that_is_off_by_two_is_noticed(factor):
    samples = sample(dpbnn.SGLD(RATE, PRIOR, temperature=factor**2), FULL_BATCH)
    assert recovers(samples, 1.0)[1] is False


class WithoutTheFactor(dpbnn.SGLD):
    """A planted error: the mean gradient where the sum over all n records belongs."""

    def update(self, state, noisy, step):
        rate, n = value_at(self.learning_rate, step), state.plan.dataset_size
        for name, gradient in self.prior.energy_gradient(of_network(state.weights)).items():
            state.weights[name].add_(gradient, alpha=-rate)
        for name, gradient in noisy.gradients.items():
            state.weights[name].add_(gradient, alpha=-rate / state.plan.batch_size)
        for name, noise in state.langevin_noise.views.items():
            state.weights[name].add_(noise, alpha=(2 * rate) ** 0.5)
        assert n > 1
        return state


def test_a_missing_n_over_b_is_noticed():
    assert recovers(sample(WithoutTheFactor(RATE, PRIOR, 1.0), FULL_BATCH), 1.0) == (False, False)


def test_a_prior_that_is_divided_by_n_is_noticed():
    narrow = 0.1
    wrong = sample(dpbnn.SGLD(RATE, dpbnn.Gaussian(narrow * N**0.5), 1.0), FULL_BATCH)
    right = sample(dpbnn.SGLD(RATE, PRIOR, 1.0), FULL_BATCH)
    assert not torch.allclose(wrong.mean(dim=0), right.mean(dim=0), atol=0.005)


@pytest.mark.slow
def test_minibatch_noise_inflates_the_posterior_by_what_theory_says():
    """The chains share their batches, so that many steps are needed."""
    batch_size, steps = 4, 4000
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=batch_size, steps=steps)
    method = dpbnn.SGLD(RATE / 4, PRIOR, 1.0, dpbnn.KeepSamples(burn_in=500, thin=5))
    samples = sample(method, plan)
    settings = {"rate": RATE / 4, "batch_size": batch_size}
    inflation = torch.trace(expected_covariance(1.0, **settings)) / torch.trace(expected_covariance(1.0, rate=RATE / 4))
    assert inflation > 1.4
    covariance = torch.from_numpy(np.cov(samples.T.numpy()))
    ratio = torch.trace(covariance) / torch.trace(expected_covariance(1.0, **settings))
    assert 0.85 < ratio < 1.15
    assert torch.trace(covariance) / torch.trace(expected_covariance(1.0, rate=RATE / 4)) > 1.2


def test_the_noise_under_a_given_temperature_is_that_of_the_formula_and_is_charged():
    plan = dpbnn.PrivacyPlan(60_000, 256, 3515, clip_norm=1.5, noise_multiplier=1.0, delta=1e-5)
    paper, posterior = (dpbnn.SGLD(5e-6, temperature=tau).prepare(plan).plan for tau in (0.5, 1.0))
    assert paper.noise_multiplier == pytest.approx(1.272074, abs=1e-6)
    assert paper.epsilon() == pytest.approx(0.8937, abs=2e-4)
    assert posterior.noise_multiplier == pytest.approx(1.798985, abs=1e-6)
    assert posterior.epsilon() == pytest.approx(0.5497, abs=2e-4)
    inverted = (5e-6) ** 0.5 * 256 / (60_000 * 1.5)  # as the paper's Theorem 1 prints it
    assert paper.noise_multiplier / inverted > 1e5


def test_the_release_is_charged_for_the_noise_of_the_temperature():
    plan = dpbnn.PrivacyPlan(N, N // 4, 20, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    implied = dpbnn.SGLD(1e-3).temperature_under(plan)
    x, y = X.float(), Y[:, :1].float()
    model = nn.Linear(D, 1)
    options = {"likelihood": dpbnn.HomoscedasticGaussian(NOISE)}
    hot = dpbnn.fit(model, x, y, method=dpbnn.SGLD(1e-3, temperature=4 * implied), plan=plan, **options)
    cool = dpbnn.fit(model, x, y, method=dpbnn.SGLD(1e-3), plan=plan, **options)
    assert hot.guarantee.plan.noise_multiplier == pytest.approx(2.0)
    assert hot.guarantee.epsilon < cool.guarantee.epsilon
    assert cool.guarantee.plan == plan
    assert hot.settings["temperature"] == pytest.approx(4 * implied)
    assert cool.settings["temperature"] == pytest.approx(implied)


@pytest.mark.parametrize("change", [{}, {"learning_rate": [(1e-3, 10), (4e-3, 10)]}])
def test_settings_that_would_break_the_budget_are_refused_with_three_ways_out(change):
    plan = dpbnn.PrivacyPlan(N, N // 4, 20, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    implied = dpbnn.SGLD(4e-3).temperature_under(plan)
    cold = replace(dpbnn.SGLD(4e-3, temperature=0.5 * implied), **change)
    with pytest.raises(dpbnn.DpbnnError, match="break its budget") as refused:
        cold.prepare(plan)
    words = str(refused.value)
    assert all(way in words for way in ("temperature at least", "learning_rate at most", "clip_norm at most"))
    assert f"{implied:.6g}" in words


def test_the_three_ways_out_are_accepted():
    plan = dpbnn.PrivacyPlan(N, N // 4, 20, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    implied = dpbnn.SGLD(4e-3).temperature_under(plan)
    for method, accepted in [
        (dpbnn.SGLD(4e-3, temperature=implied), plan),
        (dpbnn.SGLD(2e-3, temperature=implied / 2), plan),
        (dpbnn.SGLD(4e-3, temperature=implied / 2), replace(plan, clip_norm=0.5**0.5)),
    ]:
        assert method.prepare(accepted).plan.noise_multiplier == pytest.approx(1.0, rel=1e-6)


def test_a_schedule_at_a_fixed_temperature_varies_the_noise_and_is_composed_so():
    plan = dpbnn.PrivacyPlan(1000, 100, 30, clip_norm=1.0, noise_multiplier=0.5, delta=1e-4)
    method = dpbnn.SGLD([(4e-4, 10), (1e-4, 20)], temperature=0.02)
    varied = method.prepare(plan).plan
    assert [steps for _, steps in varied.noise_levels] == [10, 20]
    first, second = (level for level, _ in varied.noise_levels)
    assert second == pytest.approx(2 * first)
    assert varied.epsilon() < replace(plan, noise_multiplier=first).epsilon()
    assert varied.epsilon() > replace(plan, noise_multiplier=second).epsilon()
    assert method.temperature_under(plan) == pytest.approx(0.02)


def test_a_schedule_that_keeps_clip_norm_times_root_rate_constant_has_one_noise_level():
    runs = [(1e-4 / 3**k, 10) for k in range(6)]
    clip_norms = [(0.1 * 3 ** (k / 2), 10) for k in range(6)]
    plan = dpbnn.PrivacyPlan(1000, 100, 60, clip_norm=clip_norms, noise_multiplier=0.1, delta=1e-4)
    assert len(dpbnn.SGLD(runs, temperature=0.02).prepare(plan).plan.noise_levels) == 1


def test_samples_count_by_their_learning_rate():
    plan = dpbnn.PrivacyPlan(N, N // 4, 20, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    method = dpbnn.SGLD([(3e-3, 15), (1e-3, 5)], keep_as=dpbnn.KeepSamples(burn_in=10))
    options = {"likelihood": dpbnn.HomoscedasticGaussian(NOISE)}
    posterior = dpbnn.fit(nn.Linear(D, 1), X.float(), Y[:, :1].float(), method=method, plan=plan, **options).posterior
    assert (posterior.importance[:5] / posterior.importance[-1]).tolist() == pytest.approx([3.0] * 5)


CONVERTED = {"gaussian": dpbnn.Gaussian(0.1), "laplace": dpbnn.Laplace(0.1), "flat": dpbnn.Flat()}
SMALL = dpbnn.PrivacyPlan(N, N // 4, 30, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)


def last_weights(method, plan):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 1))
    options = {"likelihood": dpbnn.HomoscedasticGaussian(), "unsafe_seed": 9}
    posterior = dpbnn.fit(model, X.float(), Y[:, :1].float(), method=method, plan=plan, **options).posterior
    return posterior.weights if hasattr(posterior, "weights") else posterior.sample(len(posterior) - 1)


@pytest.mark.guarantees("DP-SGLD and its conversion to DP-SGD give the same iterates from the same seeds.")
@pytest.mark.parametrize("prior", CONVERTED.values(), ids=CONVERTED)
@pytest.mark.parametrize("temperature", [None, 1e4])
def test_sgld_as_sgd_gives_the_same_iterates(prior, temperature):
    method = dpbnn.SGLD(1e-3, prior, temperature)
    converted, plan = method.as_sgd(SMALL)
    assert isinstance(converted, dpbnn.SGD)
    first, second = last_weights(method, SMALL), last_weights(converted, plan)
    assert all(torch.equal(first[name], second[name]) for name in first)
    wrong = last_weights(replace(converted, learning_rate=2 * converted.learning_rate), plan)
    assert not torch.allclose(first["0.weight"], wrong["0.weight"], rtol=1e-3)


@pytest.mark.guarantees("DP-SGD and its conversion to DP-SGLD give the same iterates from the same seeds.")
@pytest.mark.parametrize("prior", CONVERTED.values(), ids=CONVERTED)
@pytest.mark.parametrize("rate", [0.07, [(0.07, 10), (0.03, 20)]])
def test_sgd_as_sgld_gives_the_same_iterates(prior, rate):
    method = dpbnn.SGD(rate, prior)
    converted, plan = method.as_sgld(SMALL)
    assert isinstance(converted, dpbnn.SGLD)
    first, second = last_weights(method, SMALL), last_weights(converted, plan)
    assert all(torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-7) for name in first)
    if prior is not CONVERTED["flat"]:
        wrong = last_weights(replace(converted, prior=type(prior)(0.1 * N**0.5)), plan)
        assert not torch.allclose(first["0.weight"], wrong["0.weight"], rtol=1e-3)


def test_what_is_no_langevin_sampler_is_not_converted():
    for method in (dpbnn.SGD(0.1, momentum=0.5), dpbnn.SGD(0.1, optimizer="Adam")):
        with pytest.raises(dpbnn.DpbnnError, match="plain descent"):
            method.as_sgld(SMALL)
    with pytest.raises(dpbnn.DpbnnError, match="private plan"):
        dpbnn.SGLD(1e-3).as_sgd(FULL_BATCH)


def test_the_implied_temperature_of_a_dp_sgd_run_is_in_its_release():
    plan = dpbnn.PrivacyPlan(60_000, 256, 3515, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)
    plain = dpbnn.SGD(0.25).prepare(plan).settings["implied_temperature"]
    assert plain == pytest.approx(0.25 * 60_000 * (1.3 * 1.5 / 256) ** 2 / 2)
    assert dpbnn.SGD(0.25, momentum=0.9).prepare(plan).settings["implied_temperature"] == pytest.approx(plain / 0.1)
    adam = dpbnn.SGD(1e-3, optimizer="Adam").prepare(plan).settings
    assert adam["implied_temperature"] is None
    assert "rescales" in adam["no_temperature_because"]
    converted, _ = dpbnn.SGD(0.25).as_sgld(plan)
    assert converted.temperature_under(plan) == pytest.approx(plain)
    changing = dpbnn.SGD([(0.25, 1000), (0.1, 2515)]).prepare(plan).settings
    assert "changes along the run" in changing["no_temperature_because"]


def test_momentum_samples_at_the_temperature_that_is_reported():
    """Heavy ball on the same regression: its covariance is that of plain descent at rate / (1 - momentum)."""
    momentum, steps = 0.5, 600
    plan = dpbnn.PrivacyPlan(N, N, steps, clip_norm=LARGE_CLIP, noise_multiplier=1e-9, delta=1e-3)
    rate = N * RATE / 20
    s = (2 * (1 - momentum) / (rate / N)) ** 0.5 / LARGE_CLIP
    hot = replace(plan, noise_multiplier=s)
    method = dpbnn.SGD(rate, PRIOR, momentum=momentum)
    assert method.temperature(hot) == pytest.approx(1.0)
    model = nn.Linear(D, CHAINS, bias=False).double()
    release = dpbnn.fit(
        model, X, Y, method=method, plan=hot, likelihood=dpbnn.HomoscedasticGaussian(NOISE), unsafe_seed=4
    )
    covariance = torch.from_numpy(np.cov(release.posterior.weights["weight"].T.numpy()))
    ratio = torch.trace(covariance @ PRECISION) / D
    assert 0.85 < ratio < 1.15


def test_bad_settings_are_refused():
    for change, words in [
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"prior": 0.1}, "prior must be"),
        ({"keep_as": 100}, "keep_as must be"),
        ({"learning_rate": [(1e-3, 1)] * 65}, "1 to 64"),
    ]:
        with pytest.raises(dpbnn.DpbnnError, match=words):
            dpbnn.SGLD(**{"learning_rate": 1e-3} | change)
