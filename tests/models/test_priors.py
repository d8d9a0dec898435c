"""Priors against `torch.distributions` and numerical integration."""

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from torch.distributions import Laplace as LaplaceDistribution

import dpbnn
from dpbnn.models.priors import Flat, Gaussian, Grouped, Laplace, Prior, ScaleMixture


def double(*values):
    return torch.tensor(values, dtype=torch.float64).squeeze()


def mixture(weight, wide, narrow):
    return MixtureSameFamily(Categorical(double(weight, 1 - weight)), Normal(double(0, 0), double(wide, narrow)))


# prior, its distribution, its variance
PROPER = {
    "gaussian": (Gaussian(0.1), Normal(double(0), double(0.1)), 0.1**2),
    "wide gaussian": (Gaussian(3.0), Normal(double(0), double(3.0)), 3.0**2),
    "laplace": (Laplace(0.1), LaplaceDistribution(double(0), double(0.1)), 2 * 0.1**2),
    "wide laplace": (Laplace(2.0), LaplaceDistribution(double(0), double(2.0)), 2 * 2.0**2),
    "mixture": (ScaleMixture(), mixture(0.5, 1.0, 0.1), 0.5 * (1 + 0.01)),
    "uneven mixture": (ScaleMixture(0.2, 0.7, 0.02), mixture(0.2, 0.7, 0.02), 0.2 * 0.49 + 0.8 * 0.0004),
}
ALL = {name: prior for name, (prior, *_) in PROPER.items()} | {
    "flat": Flat(),
    "grouped": Grouped(Gaussian(0.1), {"*bias": Laplace(0.5), "b*": ScaleMixture()}),
}


def some_weights(dtype=torch.float64):
    spread = torch.logspace(-3, 1, 24, dtype=dtype)
    return {"a.weight": (spread * torch.randn(24, dtype=dtype)).reshape(4, 6), "a.bias": spread[:5], "b": -spread[5:]}


def autograd_of(prior, weights):
    leaves = {name: values.clone().requires_grad_() for name, values in weights.items()}
    gradients = torch.autograd.grad(prior.energy(leaves), list(leaves.values()))
    return dict(zip(leaves, gradients, strict=True))


def all_close(first, second):
    assert first.keys() == second.keys()
    return all(torch.allclose(first[name], second[name], rtol=1e-6, atol=1e-12) for name in first)


@pytest.mark.parametrize("name", PROPER)
def test_the_energy_is_the_negative_log_density_constants_included(name):
    prior, distribution, _ = PROPER[name]
    weights = some_weights()
    expected = -sum(float(distribution.log_prob(values).sum()) for values in weights.values())
    assert float(prior.energy(weights)) == pytest.approx(expected, rel=1e-9)
    assert prior.energy(weights).shape == ()
    assert float(prior.energy({})) == 0.0


@pytest.mark.parametrize("name", [name for name in ALL if name != "flat"])
def test_the_gradient_is_that_of_the_energy_and_no_multiple_of_it(name):
    prior, weights = ALL[name], some_weights()
    found, expected = prior.energy_gradient(weights), autograd_of(prior, weights)
    assert all_close(found, expected)
    for factor in (0.5, 2 / 3, 1.5, 2.0):
        assert not all_close(found, {weight: factor * values for weight, values in expected.items()})


@pytest.mark.parametrize("name", PROPER)
def test_the_energy_is_that_of_a_density_of_the_stated_spread(name):
    prior, _, variance = PROPER[name]

    def moment(power, factor=1.0, shift=0.0):
        def density(w):
            return w**power * math.exp(-factor * float(prior.energy({"w": double(w)})) - shift)

        edges = [0.0, *(math.sqrt(variance) * np.array([0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 40.0]))]
        return 2 * sum(quad(density, low, high)[0] for low, high in pairwise(edges))

    assert moment(0) == pytest.approx(1.0, rel=1e-6)
    assert moment(2) == pytest.approx(variance, rel=1e-6)
    for wrong in ({"factor": 0.9}, {"factor": 1.1}, {"shift": math.log(math.pi) / 2}, {"shift": math.log(2)}):
        assert (moment(0, **wrong), moment(2, **wrong)) != (
            pytest.approx(1.0, rel=0.02),
            pytest.approx(variance, rel=0.02),
        )


@pytest.mark.parametrize("name", ["gaussian", "wide gaussian", "laplace", "wide laplace"])
def test_a_divergence_by_draws_comes_out(name):
    prior, distribution, _ = PROPER[name]
    q = Normal(double(0.2), double(0.3))
    draws = q.sample((10_000,))
    terms = q.log_prob(draws) + torch.stack([prior.energy({"w": draw}) for draw in draws.split(1)])
    error = float(terms.std()) / math.sqrt(len(terms))
    expected = float(kl_divergence(q, distribution))
    assert abs(float(terms.mean()) - expected) < 5 * error
    for constant in (math.log(2), math.log(math.pi) / 2, math.log(2 * math.pi) / 2):
        assert abs(float(terms.mean()) - constant - expected) > 5 * error


def test_the_flat_prior_has_neither_energy_nor_gradient():
    weights = some_weights()
    assert float(Flat().energy(weights)) == 0.0
    assert all_close(
        Flat().energy_gradient(weights), {name: torch.zeros_like(values) for name, values in weights.items()}
    )


def test_each_weight_has_a_mixture_of_its_own():
    prior, w = ScaleMixture(0.5, 1.0, 0.01), torch.tensor([0.001, 0.8]).double()
    alone = sum(float(prior.energy({"w": one})) for one in w)
    assert float(prior.energy({"w": w})) == pytest.approx(alone)
    log_wide, log_narrow = (Normal(0.0, scale).log_prob(w).sum() for scale in (1.0, 0.01))
    for_the_whole_tensor = -float(torch.logaddexp(log_wide, log_narrow) + math.log(0.5))
    assert float(prior.energy({"w": w})) != pytest.approx(for_the_whole_tensor, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", [ScaleMixture(), ScaleMixture(0.5, 1.0, 1e-4), ScaleMixture(1e-6, 100.0, 1e-4)])
def test_the_mixture_never_overflows(prior, dtype):
    w = torch.tensor([0.0, 1e-30, 1e-8, 1e-4, 2e-3, 0.1, 1.0, 1e4], dtype=dtype)
    weights = {"w": torch.cat([w, -w])}
    assert prior.energy(weights).isfinite()
    assert autograd_of(prior, weights)["w"].isfinite().all()
    gradient = prior.energy_gradient(weights)["w"]
    assert torch.allclose(gradient, autograd_of(prior, weights)["w"], rtol=1e-5)
    assert float(gradient[7]) == pytest.approx(1e4 / prior.wide**2, rel=1e-5)  # far out the wide part alone counts
    heights = prior.weight / prior.wide, (1 - prior.weight) / prior.narrow
    pull = np.average([prior.wide**-2, prior.narrow**-2], weights=heights)  # near zero both do, by their heights
    assert float(gradient[2]) == pytest.approx(1e-8 * pull, rel=1e-4)
    assert prior.energy_gradient({"w": torch.tensor([1e25, 3e38], dtype=dtype)})["w"].isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_gradients_have_the_weights_shape_and_type_and_leave_them_alone(name):
    weights = some_weights(torch.float32)
    before = {weight: values.clone() for weight, values in weights.items()}
    required = {weight: values.requires_grad_() for weight, values in weights.items()}
    found = ALL[name].energy_gradient(required)
    assert list(found) == list(weights)
    for weight, values in found.items():
        assert values.shape == weights[weight].shape
        assert values.dtype == torch.float32
        assert not values.requires_grad
        assert torch.equal(weights[weight], before[weight])
        assert values.data_ptr() != weights[weight].data_ptr()


@pytest.mark.parametrize("prior", ALL.values(), ids=ALL)
def test_priors_are_frozen_hashable_and_have_a_repr_that_builds_them_again(prior):
    assert eval(repr(prior)) == prior
    assert hash(eval(repr(prior))) == hash(prior)
    for setting in vars(prior):
        with pytest.raises(FrozenInstanceError):
            setattr(prior, setting, 1.0)
    assert copy.deepcopy(prior) == pickle.loads(pickle.dumps(prior)) == prior


def test_patterns_cannot_be_changed_afterwards():
    given = {"*bias": Flat()}
    prior = Grouped(Gaussian(0.1), given)
    given["*weight"] = Flat()
    assert list(prior.overrides) == ["*bias"]
    with pytest.raises(TypeError):
        prior.overrides["*weight"] = Flat()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, "1", None])
def test_scales_must_be_positive(bad):
    for make in (Gaussian, Laplace):
        with pytest.raises(dpbnn.DpbnnError, match="scale must be"):
            make(bad)
    with pytest.raises(dpbnn.DpbnnError, match="wide must be"):
        ScaleMixture(wide=bad)
    with pytest.raises(dpbnn.DpbnnError, match="narrow must be"):
        ScaleMixture(narrow=bad)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0.0}, "weight must be > 0 and < 1, got 0.0"),
        ({"weight": 1.0}, "weight must be > 0 and < 1, got 1.0"),
        ({"wide": 0.1, "narrow": 0.5}, r"narrow must be < wide, which is 0.1 \(for one scale use Gaussian\), got 0.5"),
        ({"wide": 0.1, "narrow": 0.1}, r"narrow must be < wide"),
    ],
)
def test_a_mixture_must_be_one(settings, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        ScaleMixture(**settings)


def test_the_first_pattern_that_matches_decides():
    weights = {name: torch.tensor([0.5]) for name in ("0.weight", "0.bias", "2.weight", "2.bias", "2.Bias")}
    prior = Grouped(Gaussian(0.5), {"2.b*": Laplace(0.25), "*bias": Flat(), "2.*": Gaussian(0.1)})
    found = {name: float(values) for name, values in prior.energy_gradient(weights).items()}
    assert found == pytest.approx({"0.weight": 2, "0.bias": 0, "2.weight": 50, "2.bias": 4, "2.Bias": 50})
    of_parts = [Gaussian(0.5), Flat(), Gaussian(0.1), Laplace(0.25), Gaussian(0.1)]
    expected = sum(
        float(part.energy({name: values})) for part, (name, values) in zip(of_parts, weights.items(), strict=True)
    )
    assert float(prior.energy(weights)) == pytest.approx(expected)
    reordered = Grouped(Gaussian(0.5), {"2.*": Gaussian(0.1), "2.b*": Laplace(0.25), "*bias": Flat()})
    assert prior != reordered
    assert repr(prior) != repr(reordered)
    assert float(reordered.energy_gradient(weights)["2.bias"]) == pytest.approx(50)


def test_a_pattern_must_decide_for_a_weight():
    names = [name for name, _ in nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).named_parameters()]
    Grouped(Gaussian(0.1), {"*bias": Flat()}).check(names)
    Grouped(Gaussian(0.1), {}).check(names)
    Gaussian(0.1).check([])
    with pytest.raises(dpbnn.DpbnnError, match=r"'\*gamma' .* got none among '0.weight', '0.bias', .*'2.bias'"):
        Grouped(Gaussian(0.1), {"*bias": Flat(), "*gamma": Flat()}).check(names)
    with pytest.raises(dpbnn.DpbnnError, match=r"'2.bias' .* patterns before it take all of its weights; put it first"):
        Grouped(Gaussian(0.1), {"*bias": Flat(), "2.bias": Laplace(0.1)}).check(names)
    with pytest.raises(dpbnn.DpbnnError, match=r"'layer7' and 92 more; correct") as caught:
        Grouped(Gaussian(0.1), {"head*": Flat()}).check([f"layer{index}" for index in range(100)])
    assert len(str(caught.value)) < 250


def test_priors_within_a_group_check_their_own_names():
    inner = Grouped(Gaussian(0.1), {"*bias": Flat()})
    Grouped(Laplace(0.1), {"0.*": inner}).check(["0.weight", "0.bias", "1.weight"])
    with pytest.raises(dpbnn.DpbnnError, match=r"'\*bias' .* got none among '0.weight'; correct"):
        Grouped(Laplace(0.1), {"0.*": inner}).check(["0.weight", "1.weight", "1.bias"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, {}), "default must be a Prior"),
        ((Gaussian, {}), r"default must be a Prior .* got the class Gaussian \(write Gaussian\(...\)\)"),
        ((Gaussian(0.1), {"*bias": 0.1}), r"overrides\['\*bias'\] must be a Prior \(Flat, .*\), got 0.1"),
        ((Gaussian(0.1), {1: Flat()}), "A pattern in overrides must be a string such as '\\*bias', got 1"),
        ((Gaussian(0.1), [("*bias", Flat())]), "overrides must be a mapping"),
    ],
)
def test_groups_must_hold_priors(arguments, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        Grouped(*arguments)


def test_groups_do_not_follow_later_changes_of_the_callers_dictionary():
    overrides = {"*bias": Flat()}
    prior = Grouped(Gaussian(0.1), overrides)
    overrides["*weight"] = Flat()
    assert prior == Grouped(Gaussian(0.1), {"*bias": Flat()})


def test_a_prior_of_ones_own_needs_an_energy_alone():
    @dataclass(frozen=True)
    class Cauchy(Prior):
        scale: float

        def energy(self, weights):
            return sum((1 + (w / self.scale).square()).log().sum() for name, w in weights.items() if name != "free")

    weights = {"w": torch.tensor([0.5, -2.0]), "free": torch.ones(3)}
    found = Cauchy(0.5).energy_gradient(weights)
    assert found["w"].tolist() == pytest.approx([2 * w / (0.25 + w**2) for w in (0.5, -2.0)])
    assert found["free"].tolist() == [0.0] * 3
    with torch.no_grad():
        assert torch.equal(Cauchy(0.5).energy_gradient(weights)["w"], found["w"])


@pytest.mark.parametrize("prior", [Laplace(0.1), ScaleMixture(), Grouped(Gaussian(0.1), {"bias": Flat()})])
def test_training_adds_the_priors_gradient_divided_by_the_size_of_the_data(prior):
    def one_step(chosen):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
        plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=20, batch_size=20, steps=1)
        method = dpbnn.SGD(learning_rate=0.3, prior=chosen)
        x, y = torch.ones(20, 4), torch.arange(20) % 3
        release = dpbnn.fit(model, x, y, method=method, plan=plan, likelihood=dpbnn.Categorical())
        return release.posterior.weights, {name: p.detach() for name, p in model.named_parameters()}

    (with_prior, start), (without, _) = one_step(prior), one_step(Flat())
    for name, gradient in prior.energy_gradient(start).items():
        assert torch.allclose(without[name] - with_prior[name], 0.3 * gradient / 20, atol=1e-6)
