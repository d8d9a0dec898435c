"""DP-SGD: without clip and noise it is `torch.optim`; the prior stays outside the clip."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpbnn
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

N, B, STEPS = 40, 10, 12
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(N) % 3


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def fitted(method, plan, model=None, **options):
    release = dpbnn.fit(
        model or network(), X, Y, method=method, plan=plan, likelihood=dpbnn.Categorical(), unsafe_seed=3, **options
    )
    return release.posterior.weights


def by_torch(make_optimizer, prior_precision=0.0):
    """The same batches through plain autograd and torch.optim: the mean over B, and r(w) / n."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    sampler = PoissonSampler(N, B / N, Randomness.from_seed(3))
    for step in range(STEPS):
        batch = torch.from_numpy(np.asarray(sampler.batch(step)))
        loss = F.cross_entropy(model(X[batch]), Y[batch], reduction="sum") / B
        energy = sum(p.square().sum() for p in model.parameters()) * prior_precision / 2
        optimizer.zero_grad()
        (loss + energy / N).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


OPTIMIZERS = {
    "plain": ({}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "Adam": ({"optimizer": "Adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    "Adam class, options": (
        {"optimizer": torch.optim.Adam, "options": {"betas": (0.5, 0.9)}},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9)),
    ),
}
OPTIMIZERS |= {
    name: ({"optimizer": name}, lambda p, name=name: getattr(torch.optim, name)(p, lr=0.1))
    for name in ("AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "Rprop")
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_clip_and_no_noise_equals_torch_optim_on_the_same_batches(name):
    settings, reference = OPTIMIZERS[name]
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=B, steps=STEPS)
    weights = fitted(dpbnn.SGD(learning_rate=0.1, **settings), plan)
    for key, expected in by_torch(reference).items():
        assert torch.allclose(weights[key], expected, rtol=1e-6, atol=1e-6), key


def test_a_gaussian_prior_is_weight_decay_divided_by_n():
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=B, steps=STEPS)
    weights = fitted(dpbnn.SGD(learning_rate=0.1, prior=dpbnn.Gaussian(0.5)), plan)
    right, wrong = (
        by_torch(lambda p: torch.optim.SGD(p, lr=0.1), 4.0),
        by_torch(lambda p: torch.optim.SGD(p, lr=0.1), 2.0),
    )
    for key, expected in right.items():
        assert torch.allclose(weights[key], expected, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(weights[key], wrong[key], rtol=1e-4, atol=1e-4)


def test_the_priors_gradient_is_outside_the_clip():
    """With a tiny clip norm and tiny noise the data hardly counts; the prior must pull with full strength."""
    plan = dpbnn.PrivacyPlan(dataset_size=N, batch_size=B, steps=1, clip_norm=1e-9, noise_multiplier=1e-3, delta=1e-5)
    before = {name: p.detach().clone() for name, p in network().named_parameters()}
    weights = fitted(dpbnn.SGD(learning_rate=0.1, prior=dpbnn.Gaussian(0.5)), plan)
    for name, start in before.items():
        assert torch.allclose(weights[name], start * (1 - 0.1 / (N * 0.25)), rtol=1e-6, atol=1e-7)


def test_the_prior_leaves_the_likelihoods_own_weights_alone():
    model = nn.Sequential(nn.Linear(5, 1)).double()
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=N, steps=30)
    release = dpbnn.fit(
        model,
        X,
        5 * X[:, :1],
        method=dpbnn.SGD(learning_rate=0.02, prior=dpbnn.Gaussian(0.03)),
        plan=plan,
        likelihood=dpbnn.HomoscedasticGaussian(),
    )
    assert float(release.posterior.weights["likelihood.log_std"].abs()) > 0.1


def test_the_update_is_divided_by_the_plans_batch_size_not_by_the_drawn_one():
    """Data sets of 40 and of 39 records, one batch of everything: the two sums differ by exactly one clipped record."""

    def weights(count, dataset_size=40):
        plan = dpbnn.PrivacyPlan(
            dataset_size=dataset_size,
            batch_size=dataset_size,
            steps=1,
            clip_norm=1.0,
            noise_multiplier=1e-9,
            delta=1e-5,
        )
        release = dpbnn.fit(
            network(),
            X[:count],
            Y[:count],
            method=dpbnn.SGD(learning_rate=1.0),
            plan=plan,
            likelihood=dpbnn.Categorical(),
            unsafe_seed=1,
        )
        return torch.cat([w.flatten() for w in release.posterior.weights.values()])

    moved = float((weights(40) - weights(39)).norm())
    assert moved <= 1.0 / 40
    assert moved > 0.2 / 40


@pytest.mark.parametrize("prior", [0.1, dpbnn.Gaussian])
def test_what_is_no_prior_is_refused(prior):
    with pytest.raises(dpbnn.DpbnnError, match="prior must be a Prior"):
        dpbnn.SGD(0.1, prior)


def test_the_model_that_was_passed_in_keeps_its_weights():
    model = network()
    before = copy.deepcopy(model.state_dict())
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=B, steps=3)
    fitted(dpbnn.SGD(learning_rate=0.5), plan, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
