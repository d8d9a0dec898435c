"""How a gradient becomes a step: the terms are added up, and torch's optimizers do with the sum what they always do."""

import pytest
import torch

import dpbnn
from dpbnn.methods.descent import Descent, Term, as_rate, of_network, prior_term
from tests.methods.test_sgd import OPTIMIZERS

STEPS = 6


def start():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).double() for name, shape in (("a", (3, 2)), ("b", (4,)))}


def gradients(step):
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(values.shape, generator=generator).double() for name, values in start().items()}


def descended(descent, terms, weights=None):
    weights = start() if weights is None else weights
    optimizer = descent.start(weights)
    for step in range(STEPS):
        descent.step(optimizer, weights, terms(step), step)
    return weights


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rates", [0.1, ((0.1, 4), (0.02, 2))], ids=["one rate", "two rates"])
def test_steps_are_those_of_torch_optim_at_the_rate_of_the_step(name, rates):
    settings, reference = OPTIMIZERS[name]
    weights = descended(Descent(rates, **settings), lambda step: [Term(gradients(step), 2.0)])
    expected = start()
    optimizer = reference(expected.values())
    for step in range(STEPS):
        for key, values in expected.items():
            values.grad = gradients(step)[key] / 2.0
        optimizer.param_groups[0]["lr"] = 0.1 if step < 4 or rates == 0.1 else 0.02
        optimizer.step()
    for key, values in expected.items():
        assert torch.allclose(weights[key], values, rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"optimizer": "Adam"}])
def test_terms_are_divided_multiplied_and_added_up_and_zero_where_they_have_no_name(settings):
    factors = {"a": torch.full((3, 2), 3.0).double()}

    def terms(step):
        every = gradients(step)
        return [Term({"a": every["a"]}, 2.0, factors), Term({"b": every["b"]}, 0.5), Term({}, 1.0), Term(every, 4.0)]

    def total(step):
        every = gradients(step)
        return [Term({"a": every["a"] * 3 / 2 + every["a"] / 4, "b": every["b"] * 2 + every["b"] / 4}, 1.0)]

    one, other = (descended(Descent(0.1, **settings), kind) for kind in (terms, total))
    assert all(torch.allclose(one[name], values, rtol=1e-9) for name, values in other.items())


@pytest.mark.parametrize(
    ("settings", "phase"),
    [({}, 0.1), ({"momentum": 0.5}, 0.1), ({"optimizer": "Adam"}, None), ({"optimizer": "ASGD"}, None)],
)
def test_steps_have_a_phase_unless_the_optimizer_counts_on_the_host(settings, phase):
    descent = Descent(((0.1, 3), (0.2, 3)), **settings)
    optimizer = descent.start(start())
    assert descent.phase(optimizer, 2) == phase
    assert descent.phase(optimizer, 3) == (None if phase is None else 0.2)


def test_plain_descent_loads_no_optimizer():
    assert Descent(0.1).start(start()) is None
    assert isinstance(Descent(0.1, momentum=0.5).start(start()), torch.optim.SGD)
    assert isinstance(Descent(0.1, options={"nesterov": False}).start(start()), torch.optim.SGD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -0.1}, r"learning_rate must be > 0, got -0.1\."),
        ({"learning_rate": 0.1, "momentum": 1.0}, r"momentum must be >= 0 and < 1, got 1.0\."),
        ({"learning_rate": 0.1, "momentum": 0.9, "optimizer": "Adam"}, "unless the optimizer is 'SGD'"),
        ({"learning_rate": 0.1, "optimizer": "LBFGS"}, "must not be LBFGS.*use 'SGD' or 'Adam'"),
        ({"learning_rate": 0.1, "optimizer": torch.optim.LBFGS}, "must not be LBFGS"),
        ({"learning_rate": 0.1, "optimizer": "SparseAdam"}, "must not be SparseAdam"),
        ({"learning_rate": 0.1, "optimizer": "Sgd"}, "optimizer must be a name in torch.optim"),
        ({"learning_rate": 0.1, "optimizer": "adam"}, "use 'Adam'"),
        ({"learning_rate": 0.1, "optimizer": "Optimizer"}, "optimizer must be a name in torch.optim"),
        ({"learning_rate": 0.1, "options": {"bettas": 1}}, "options do not fit torch.optim.SGD"),
    ],
)
@pytest.mark.parametrize("kind", [Descent, dpbnn.SGD])
def test_bad_settings_get_one_clear_line(kind, arguments, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        kind(**arguments)


@pytest.mark.parametrize("rate", [1e-31, 1e16, float("inf"), float("nan"), 0.0])
def test_a_rate_out_of_the_range_that_arithmetic_bears_is_refused(rate):
    with pytest.raises(dpbnn.DpbnnError, match="rate must be"):
        as_rate("rate", rate)
    assert as_rate("rate", 1) == 1.0


@pytest.mark.parametrize("prior", [dpbnn.Gaussian(0.5), dpbnn.Laplace(0.5), dpbnn.Flat()])
def test_the_priors_term_is_its_gradient_and_spares_a_likelihoods_weights(prior):
    weights = start() | {"likelihood.log_std": torch.ones(1).double()}
    assert of_network(weights).keys() == start().keys()
    totals = {name: torch.zeros_like(values) for name, values in weights.items()}
    prior_term(prior, weights, 7.0).add_to(totals, 2.0)
    expected = prior.energy_gradient(start())
    assert totals["likelihood.log_std"] == 0
    assert all(torch.allclose(totals[name], values * 2 / 7) for name, values in expected.items())
