"""What every registered method promises; a method without a case here fails the first test."""

import inspect

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.methods import METHODS, Method
from dpbnn.training.steps import eager
from dpbnn.types import NoisySum

N, B, STEPS = 60, 15, 12
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
PRIVATE = dpbnn.PrivacyPlan(N, B, STEPS, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
PUBLIC = dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=B, steps=STEPS)
PRIOR = dpbnn.Gaussian(0.5)

CASES = {
    "sgd": [dpbnn.SGD(0.1, PRIOR), dpbnn.SGD(0.01, optimizer="Adam"), dpbnn.SGD([(0.1, 4), (0.05, 8)], momentum=0.5)],
    "sgld": [
        dpbnn.SGLD(1e-3, PRIOR),
        dpbnn.SGLD([(2e-3, 6), (1e-3, 6)], PRIOR, keep_as=dpbnn.KeepSamples(burn_in=2, dtype="bfloat16")),
        dpbnn.SGLD(1e-3, PRIOR, keep_as=dpbnn.KeepSummary(rank=3, burn_in=1)),
    ],
    "bbp": [
        dpbnn.BBP(0.1, PRIOR),
        dpbnn.BBP(0.1, dpbnn.Laplace(0.5), form="joint", num_draws=2),
        dpbnn.BBP(0.01, PRIOR, optimizer="Adam"),
    ],
    "mc_dropout": [dpbnn.MCDropout(0.1, PRIOR), dpbnn.MCDropout(0.01, optimizer="Adam")],
}
EVERY = [pytest.param(method, id=f"{name} {i}") for name, own in CASES.items() for i, method in enumerate(own)]
pytestmark = pytest.mark.filterwarnings("ignore:The .* kept samples")


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def fit(method, plan=PRIVATE, x=X, y=Y, **options):
    settings = {"likelihood": dpbnn.Categorical(), "unsafe_seed": 5, "seed": 7}
    return dpbnn.fit(network(), x, y, method=method, plan=plan, **settings | options)


def same(first, second):
    one, other = first.posterior.tensors(), second.posterior.tensors()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_every_registered_method_has_a_case():
    assert CASES.keys() == METHODS.keys()
    for name, own in CASES.items():
        assert all(isinstance(method, METHODS[name].load()) and isinstance(method, Method) for method in own)


@pytest.mark.parametrize("method", EVERY)
def test_draws_have_the_shapes_of_the_weights_and_probabilities_are_probabilities(method):
    release = fit(method)
    shapes = {name: p.shape for name, p in network().named_parameters()}
    for weights in release.posterior.draw(3, seed=0):
        assert {name: values.shape for name, values in weights.items()} == shapes
        assert all(values.isfinite().all() for values in weights.values())
    probabilities = release.predict(X, num_draws=4).probabilities
    assert probabilities.shape == (N, 3)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(N), atol=1e-5)
    assert release.settings["method"] in METHODS


@pytest.mark.parametrize("method", EVERY)
def test_the_same_seeds_give_the_same_posterior_and_other_noise_another(method):
    assert same(fit(method), fit(method))
    assert not same(fit(method), fit(method, unsafe_seed=6))
    release = fit(method)
    assert torch.equal(release.predict(X, seed=3).probabilities, release.predict(X, seed=3).probabilities)


@pytest.mark.parametrize("method", EVERY)
def test_a_users_seed_never_fixes_noise_or_sampling(method):
    release = fit(method, unsafe_seed=None)
    assert release.guarantee.holds
    assert not same(release, fit(method, unsafe_seed=None))


@pytest.mark.parametrize("method", EVERY)
def test_without_clip_and_noise_it_runs_and_claims_no_guarantee(method):
    release = fit(method, PUBLIC, unsafe_seed=None)
    assert not release.guarantee.holds
    assert "no privacy guarantee" in str(release.guarantee)
    assert all(weights["0.weight"].isfinite().all() for weights in release.posterior.draw(2, seed=0))


@pytest.mark.parametrize("method", EVERY)
def test_empty_batches_are_steps_like_any_other(method):
    release = fit(method, x=X[:0], y=Y[:0])
    assert release.settings["releases_charged"] == STEPS
    assert release.predict(X, num_draws=2).probabilities.isfinite().all()


@pytest.mark.guarantees("A resumed run ends as an uninterrupted one.")
@pytest.mark.parametrize("method", EVERY)
@pytest.mark.parametrize("at", [3, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, STEPS - 1))])
def test_a_resumed_run_ends_as_an_uninterrupted_one(monkeypatch, tmp_path, method, at):
    class Crash(Exception):
        pass

    whole, original = fit(method), eager.add_noise

    def crashing(clipped, noise_multiplier, randomness, step):
        if step == at:
            raise Crash
        return original(clipped, noise_multiplier, randomness, step)

    options = {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=0)}
    monkeypatch.setattr(eager, "add_noise", crashing)
    with pytest.raises(Crash):
        fit(method, **options)
    monkeypatch.setattr(eager, "add_noise", original)
    resumed = fit(method, **options)
    assert same(whole, resumed)
    assert resumed.settings["releases_charged"] == STEPS


@pytest.mark.parametrize("method", EVERY)
def test_a_saved_release_predicts_as_before(tmp_path, method):
    release = fit(method)
    release.save(tmp_path / "release")
    again = dpbnn.load(tmp_path / "release", network())
    assert same(release, again)
    assert again.settings == release.settings
    first, second = (r.predict(X, num_draws=5, seed=1) for r in (release, again))
    assert torch.equal(first.probabilities, second.probabilities)


@pytest.mark.parametrize("method", EVERY)
def test_update_receives_no_data(method):
    """A method runs by its verbs alone, on noise that nobody's record has touched."""
    for verb in ("prepare", "init", "begin_step", "weights", "update", "end_step", "to_posterior"):
        parameters = list(inspect.signature(getattr(method, verb)).parameters)
        assert set(parameters) <= {"weights", "plan", "seed", "state", "step", "noisy"}, verb
    weights = {name: p.detach() for name, p in network().named_parameters()}
    plan = method.prepare(PRIVATE).plan
    state = method.init(weights, plan, 7)
    for step in range(STEPS):
        method.begin_step(state, step)
        method.weights(state, step)
        joint = getattr(method, "form", "") == "joint"
        shapes = {name: ((2, *values.shape) if joint else values.shape) for name, values in weights.items()}
        noisy = NoisySum({name: torch.randn(shape) for name, shape in shapes.items()})
        state = method.update(state, noisy, step)
        method.end_step(state, step)
    assert all(w["0.weight"].isfinite().all() for w in method.to_posterior(state).draw(2, seed=0))


@pytest.mark.parametrize("method", EVERY)
def test_the_users_model_and_weights_are_left_alone(method):
    model = network()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    dpbnn.fit(model, X, Y, method=method, plan=PRIVATE, likelihood=dpbnn.Categorical())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("method", EVERY)
def test_a_learned_noise_scale_is_trained_with_the_rest(method):
    x, y = X.double(), X[:, :1].double()
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1)).double()
    release = dpbnn.fit(model, x, y, method=method, plan=PRIVATE, likelihood=dpbnn.HomoscedasticGaussian())
    prediction = release.predict(x, num_draws=4)
    assert "likelihood.log_std" in release.posterior.names
    assert (prediction.aleatoric_variance > 0).all()


@pytest.mark.parametrize("method", EVERY)
def test_a_prior_whose_pattern_matches_nothing_is_refused_before_training(method):
    from dataclasses import replace

    with pytest.raises(dpbnn.DpbnnError, match="must match a weight"):
        fit(replace(method, prior=dpbnn.Grouped(PRIOR, {"*nothing": dpbnn.Flat()})))


@pytest.mark.parametrize(
    "method",
    [
        dpbnn.SGD([(0.1, 5)]),
        dpbnn.SGD(0.1, dpbnn.Grouped(PRIOR, {"*nothing": dpbnn.Flat()})),
        dpbnn.SGLD(1e-3, keep_as=dpbnn.KeepSamples(burn_in=STEPS - 1)),
    ],
    ids=["rates too short", "prior of no weight", "no two samples"],
)
def test_what_a_method_refuses_costs_nothing_of_an_open_budget(method):
    setup = dpbnn.Setup(network(), method, PRIVATE, dpbnn.Categorical())
    with dpbnn.BudgetAccountant(epsilon=1000.0, delta=0.5) as budget:
        with pytest.raises(dpbnn.DpbnnError):
            fit(method, unsafe_seed=None)
        with pytest.raises(dpbnn.DpbnnError):
            dpbnn.fit_many([setup], X, Y, progress=False)
        assert not budget.charges


def test_the_registry_says_which_methods_need_dropout():
    for name, own in CASES.items():
        assert {method.has_dropout for method in own} == {METHODS[name].has_dropout}


def test_a_learning_rate_that_does_not_last_as_long_as_the_plan_is_refused():
    for method in (dpbnn.SGD, dpbnn.SGLD, dpbnn.BBP, dpbnn.MCDropout):
        with pytest.raises(dpbnn.DpbnnError, match="12 in all"):
            fit(method([(0.1, 5), (0.05, 5)]))
