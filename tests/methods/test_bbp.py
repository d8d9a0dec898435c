"""DP-BBP descends the evidence lower bound, with the KL in it once, and finds the mean-field optimum."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

import dpbnn
from dpbnn.methods.kl import Draw, kl_gradient
from dpbnn.posterior import MeanField
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler
from dpbnn.seeds import derived_seed, standard_normals
from dpbnn.types import NoisySum

# Bayesian linear regression with correlated inputs: the mean-field optimum is far from the true marginals.
N, D, COPIES = 40, 3, 200
NOISE, SCALE = 0.5, 0.7
MIX = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 0.9]], dtype=torch.float64)
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ MIX
TARGET = X @ torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64) + 0.3
Y = TARGET[:, None].expand(N, COPIES)
PRECISION = X.T @ X / NOISE**2 + torch.eye(D, dtype=torch.float64) / SCALE**2
MEAN = torch.linalg.solve(PRECISION, X.T @ TARGET / NOISE**2)
STD = PRECISION.diagonal().rsqrt()
LIKELIHOOD = dpbnn.HomoscedasticGaussian(NOISE)


def regression(outputs=COPIES):
    model = nn.Linear(D, outputs, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


def optimum(prior=None, **settings):
    """Mean and std that a full-batch run without privacy ends in, averaged over all copies of the regression."""
    rates = [(0.05, 300), (0.01, 300), (0.002, 200)]
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=N, steps=800)
    method = dpbnn.BBP(rates, prior or dpbnn.Gaussian(SCALE), optimizer="Adam", **settings)
    release = dpbnn.fit(regression(), X, Y, method=method, plan=plan, likelihood=LIKELIHOOD, seed=3)
    return release.posterior.mean["weight"].mean(dim=0), release.posterior.std["weight"].mean(dim=0)


@pytest.mark.parametrize("settings", [{}, {"form": "joint", "num_draws": 2}], ids=["aligned", "joint"])
def test_it_recovers_the_mean_field_optimum(settings):
    mean, std = optimum(**settings)
    assert torch.allclose(mean, MEAN, atol=0.01)
    assert torch.allclose(std, STD, rtol=0.03)
    marginals = torch.linalg.inv(PRECISION).diagonal().sqrt()
    assert not torch.allclose(std, marginals, rtol=0.15)  # what a sampler would find, and mean field can not


def test_a_kl_of_twice_or_half_its_weight_would_be_noticed(monkeypatch):
    for weight in (0.5, 2.0):

        def weighted(prior, mean, std, draws, weight=weight):
            return tuple(
                [(g, divisor / weight) for g, divisor in part] for part in kl_gradient(prior, mean, std, draws)
            )

        monkeypatch.setattr("dpbnn.methods.bbp.kl_gradient", weighted)
        _, std = optimum()
        assert not torch.allclose(std, STD, rtol=0.1)


def test_its_elbo_equals_the_closed_form():
    """``-ELBO = E_q[sum_i l_i] + KL``: by draws of the posterior, and by the Gaussian integrals."""
    torch.manual_seed(4)
    mean, std = torch.randn(1, D, dtype=torch.float64), 0.1 + torch.rand(1, D, dtype=torch.float64)
    posterior, target = MeanField({"weight": mean}, {"weight": std}), TARGET[:, None]
    draws = list(posterior.draw(4000, seed=1))
    losses = [LIKELIHOOD.negative_log_likelihood(X @ w["weight"].T, target, {}).sum() for w in draws]
    by_draws = torch.stack(losses)
    residual = target - X @ mean.T
    constants = N * (math.log(NOISE) + math.log(2 * math.pi) / 2)
    expected = (residual.square().sum() + (X.square() @ std.square().T).sum()) / (2 * NOISE**2) + constants
    error = by_draws.std() / len(draws) ** 0.5
    assert abs(by_draws.mean() - expected) < 4 * error
    assert abs(by_draws.mean() - expected - residual.square().sum() / (2 * NOISE**2)) > 10 * error


def kl_divergence(q, prior):
    priors = {name: Normal(torch.zeros_like(std), torch.full_like(std, prior.scale)) for name, std in q.std.items()}
    return sum(torch.distributions.kl_divergence(Normal(q.mean[n], q.std[n]), priors[n]).sum() for n in priors)


@pytest.mark.parametrize("settings", [{}, {"form": "joint", "num_draws": 1}, {"form": "joint", "num_draws": 4}])
@pytest.mark.parametrize("batch_size", [5, 20])
def test_the_kl_is_weighted_once_not_per_batch_layer_or_draw(settings, batch_size):
    """With no gradient from data the step is exactly ``-rate grad KL / n``, whatever the batch size and the draws."""
    n, rate, prior = 100, 0.5, dpbnn.Gaussian(0.3)
    weights = {
        f"{i}.{part}": torch.randn(s, dtype=torch.float64)
        for i, part, s in [(0, "weight", (4, 3)), (0, "bias", (4,)), (1, "weight", (2, 4)), (1, "bias", (2,))]
    }
    method = dpbnn.BBP(rate, prior, **settings)
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=n, batch_size=batch_size, steps=1)
    state = method.init(weights, plan, seed=0)
    before = {name: values.clone().requires_grad_() for name, values in state.parameters.items()}
    q = MeanField(
        {m.removeprefix("mean/"): v for m, v in before.items() if m.startswith("mean/")},
        {m.removeprefix("rho/"): F.softplus(v) for m, v in before.items() if m.startswith("rho/")},
    )
    gradients = torch.autograd.grad(kl_divergence(q, prior) / n, list(before.values()))
    method.begin_step(state, 0)
    method.weights(state, 0)
    shapes = {name: (2, *v.shape) if "form" in settings else v.shape for name, v in weights.items()}
    state = method.update(state, NoisySum({n: torch.zeros(s, dtype=torch.float64) for n, s in shapes.items()}), 0)
    for (name, values), gradient in zip(before.items(), gradients, strict=True):
        assert torch.allclose(state.parameters[name], values - rate * gradient, rtol=1e-12), name


def test_aligned_and_joint_with_one_draw_are_the_same_when_nothing_is_clipped():
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=10, steps=15)
    model = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    options = {"plan": plan, "likelihood": LIKELIHOOD, "seed": 3, "unsafe_seed": 1}
    aligned, joint = (
        dpbnn.fit(model, X, Y[:, :1], method=dpbnn.BBP(0.05, form=form), **options).posterior
        for form in ("aligned", "joint")
    )
    for name, values in aligned.tensors().items():
        assert torch.allclose(values, joint.tensors()[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.slow
def test_several_draws_agree_with_one_in_expectation_and_vary_less():
    """The released gradient of one step, over many seeds."""
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=N, steps=1)
    model = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def steps(**settings):
        rows = []
        for seed in range(300):
            method = dpbnn.BBP(1e-5, initial_std=1.0, **settings)  # so small that rho is linear in it
            posterior = dpbnn.fit(
                model, X, Y[:, :1], method=method, plan=plan, likelihood=LIKELIHOOD, seed=seed
            ).posterior
            rows.append(torch.cat([values.flatten() for values in posterior.tensors().values()]))
        return torch.stack(rows)

    one, many = steps(), steps(form="joint", num_draws=6)
    error = (one.var(dim=0) / 300 + many.var(dim=0) / 300).sqrt().clamp_min(1e-12)
    apart = (one.mean(dim=0) - many.mean(dim=0)) / error
    assert apart.abs().max() < 4.5
    assert 3 < (one.var(dim=0).sum() / many.var(dim=0).sum()) < 12


def test_steps_come_in_pairs_with_opposite_draws():
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=N, steps=9)
    method = dpbnn.BBP(0.1)
    state = method.init({"weight": torch.zeros(3, 4)}, plan, seed=1)
    draws = []
    for step in (0, 1, 2, 3, 5, 4, 1):
        method.begin_step(state, step)
        draws.append(method.weights(state, step)["weight"].clone())
    assert torch.equal(draws[0], -draws[1])
    assert torch.equal(draws[2], -draws[3])
    assert torch.equal(draws[4], -draws[5])
    assert torch.equal(draws[6], draws[1])  # whatever came before
    assert not torch.equal(draws[0].abs(), draws[2].abs())
    assert draws[0].std() > 0


def test_no_clip_and_no_noise_equals_plain_autograd_through_the_draws():
    """The same batches and draws, differentiated through ``mu + softplus(rho) e`` by autograd."""
    n, b, steps, rate, prior = N, 10, 8, 0.1, dpbnn.Gaussian(0.4)
    model = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=n, batch_size=b, steps=steps)
    method = dpbnn.BBP(rate, prior)
    options = {"likelihood": LIKELIHOOD, "seed": 3, "unsafe_seed": 1}
    ours = dpbnn.fit(model, X, Y[:, :1], method=method, plan=plan, **options).posterior
    start = method.init({name: p.detach() for name, p in model.named_parameters()}, plan, 3)
    mean = {name: v.clone().requires_grad_() for name, v in start.mean.views.items()}
    rho = {name: v.clone().requires_grad_() for name, v in start.rho.views.items()}
    sampler = PoissonSampler(N, b / n, Randomness.from_seed(1))
    for step in range(steps):
        batch = torch.from_numpy(np.asarray(sampler.batch(step)))
        e = standard_normals({k: v.detach() for k, v in mean.items()}, derived_seed(3, step // 2, 0))
        sign = -1 if step % 2 else 1  # steps come in pairs with opposite draws
        w = {name: mean[name] + F.softplus(rho[name]) * sign * e[name] for name in mean}
        outputs = torch.func.functional_call(model, w, (X[batch],))
        loss = LIKELIHOOD.negative_log_likelihood(outputs, Y[batch, :1], {}).sum() / b
        q = MeanField(mean, {name: F.softplus(v) for name, v in rho.items()})
        leaves = [*mean.values(), *rho.values()]
        for leaf, gradient in zip(leaves, torch.autograd.grad(loss + kl_divergence(q, prior) / n, leaves), strict=True):
            leaf.data.sub_(gradient, alpha=rate)
    for name in mean:
        assert torch.allclose(ours.mean[name], mean[name], rtol=1e-9, atol=1e-12)
        assert torch.allclose(ours.std[name], F.softplus(rho[name]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "prior",
    [
        dpbnn.Laplace(0.3),
        dpbnn.ScaleMixture(0.5, wide=0.5, narrow=0.1),
        dpbnn.Flat(),
        dpbnn.Grouped(dpbnn.Gaussian(0.3), {"*bias": dpbnn.Laplace(0.2)}),
    ],
    ids=repr,
)
def test_the_gradient_of_other_priors_by_draws_is_that_of_the_kl(prior):
    torch.manual_seed(0)
    mean = {"weight": torch.randn(3, 2, dtype=torch.float64), "bias": torch.randn(3, dtype=torch.float64)}
    std = {name: 0.2 + torch.rand_like(values) for name, values in mean.items()}
    leaves = {
        f"{kind}{name}": v.clone().requires_grad_()
        for kind, part in (("m", mean), ("s", std))
        for name, v in part.items()
    }
    e = standard_normals(mean, 5)
    w = {name: leaves["m" + name] + leaves["s" + name] * e[name] for name in mean}
    entropy = sum(leaves["s" + name].log().sum() for name in mean)
    cross = sum(
        (
            _expected_gaussian(prior, name, leaves)
            if isinstance(prior.for_weight(name), dpbnn.Gaussian)
            else prior.energy({name: w[name]})
        )
        for name in mean
    )
    expected = torch.autograd.grad(cross - entropy, list(leaves.values()), allow_unused=True)
    draw = Draw({name: values.detach() for name, values in w.items()}, e)
    in_mean, in_std = map(added_up, kl_gradient(prior, mean, std, [draw]))
    for (name, _), gradient in zip(leaves.items(), expected, strict=True):
        found = (in_mean if name[0] == "m" else in_std).get(name[1:])
        if gradient is None:
            assert found is None
        else:
            assert torch.allclose(found, gradient, rtol=1e-10)


def added_up(parts):
    total = {}
    for gradients, divisor in parts:
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0) + gradient / divisor
    return total


def _expected_gaussian(prior, name, leaves):
    scale = prior.for_weight(name).scale
    return (leaves["m" + name].square() + leaves["s" + name].square()).sum() / (2 * scale**2)


def test_initial_stds_follow_the_fan_in_and_never_exceed_the_prior():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(100, 7), nn.LayerNorm(7), nn.Linear(7, 2))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=10, batch_size=5, steps=2)
    method = dpbnn.BBP(0.1, dpbnn.Grouped(dpbnn.Gaussian(1.0), {"4.*": dpbnn.Gaussian(0.01)}), initial_std=0.2)
    std = method.to_posterior(method.init(weights, plan, 0)).std
    expected = {"0": 0.2 / 18**0.5, "2": 0.2 / 10, "3": 0.2, "4": 0.01}
    for name, values in std.items():
        assert values.flatten().tolist() == pytest.approx([expected[name[0]]] * values.numel(), rel=1e-5), name
    alone = dpbnn.BBP(0.1, initial_std=0.2).init({"weight": torch.ones(3, 4)}, plan, 0)
    assert F.softplus(alone.rho.views["weight"])[0, 0].item() == pytest.approx(0.1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(dim=1))


@pytest.mark.parametrize("form", ["aligned", "joint"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)), (1, 6, 6)),
        (Attention(), (5, 4)),
    ],
    ids=["convolution", "attention"],
)
def test_any_network_that_the_core_can_clip_can_be_bayesian(model, shape, form):
    x, y = torch.randn(30, *shape), torch.arange(30) % 3
    plan = dpbnn.PrivacyPlan(30, 10, 4, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    release = dpbnn.fit(model, x, y, method=dpbnn.BBP(0.1, form=form), plan=plan, likelihood=dpbnn.Categorical())
    assert release.predict(x, num_draws=8).mutual_information.mean() > 0


def test_bad_settings_are_refused():
    for change, words in [
        ({"form": "both"}, "form must be"),
        ({"num_draws": 3}, "num_draws must be 1 for the aligned form"),
        ({"num_draws": 0, "form": "joint"}, "num_draws must be"),
        ({"initial_std": 0.0}, "initial_std must be"),
        ({"optimizer": "LBFGS"}, "must not be LBFGS"),
    ]:
        with pytest.raises(dpbnn.DpbnnError, match=words):
            dpbnn.BBP(0.1, **change)
