"""Many networks on the same records: stacked or one by one, they predict what each predicts by itself."""

import copy
import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping.objective import Objective
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from dpbnn.models.networks import MLP
from dpbnn.prediction.predict import Predictor, predict
from tests.prediction.networks import MODELS, Draws, Recurrent


def one_by_one(model, posterior, x, num_draws):
    """``[draws, records, classes]``: every network by itself, as a user would run it."""
    found = []
    for weights in posterior.draw(num_draws, 0):
        network = copy.deepcopy(model).eval()
        network.load_state_dict(weights, strict=False)
        with torch.no_grad():
            found.append(network(x.clone()).softmax(dim=1))
    return torch.stack(found)


def counted(model):
    """How often the model runs."""
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 9])
def test_vectorised_prediction_is_the_average_over_networks_run_one_by_one(name, rows):
    make, shape, vectorises = MODELS[name]
    model = make().double()
    posterior, x = Draws.around(model, 20), torch.randn(rows, *shape).double()
    truth = one_by_one(model, posterior, x, 20)
    calls = counted(model)
    prediction = predict(Objective(model, Categorical()), posterior, x, 20, seed=0, keep_draws=True)
    assert (len(calls) < 20) == vectorises
    assert torch.allclose(prediction.draws, truth, atol=1e-11)
    assert torch.allclose(prediction.probabilities, truth.mean(0), atol=1e-11)
    expected = torch.distributions.Categorical(probs=truth).entropy().mean(0)
    assert torch.allclose(prediction.expected_entropy, expected, atol=1e-9)
    assert prediction.num_draws == 20


def test_a_likelihoods_own_weights_are_drawn_with_the_networks():
    model, x = MLP(4, [6], 2), torch.randn(7, 4)
    posterior = Draws.around(model, 20, extra={"likelihood.log_std": torch.zeros(2)})
    objective = Objective(model, HomoscedasticGaussian(), ("likelihood.log_std",))
    prediction = predict(objective, posterior, x, 20, seed=0)
    assert prediction.means.shape == prediction.variances.shape == (20, 7, 2)
    for draw, weights in enumerate(posterior.weights):
        assert torch.allclose(prediction.means[draw], objective.outputs(weights, x), atol=1e-5)
        assert torch.allclose(prediction.variances[draw], (2 * weights["likelihood.log_std"]).exp().expand(7, 2))


def test_probabilities_are_averaged_and_not_logits():
    model = nn.Linear(1, 2, bias=False)
    posterior = Draws([{"weight": torch.tensor([[4.0], [0.0]])}, {"weight": torch.tensor([[-1.0], [0.0]])}])
    prediction = predict(Objective(model, Categorical()), posterior, torch.ones(1, 1), 2, seed=0)
    sure, unsure = 1 / (1 + math.exp(-4)), 1 / (1 + math.exp(1))
    assert prediction.probabilities[0, 0].item() == pytest.approx((sure + unsure) / 2, abs=1e-6)
    assert prediction.probabilities[0, 0].item() != pytest.approx(1 / (1 + math.exp(-1.5)), abs=0.1)


class Scribbles(nn.Module):
    """Writes to its inputs: always, or now and then."""

    def __init__(self, every, secretly=False):
        super().__init__()
        self.linear, self.every, self.secretly, self.calls = nn.Linear(4, 3), every, secretly, 0

    def forward(self, x):
        self.calls += 1
        if self.calls % self.every == 0:
            (x.data if self.secretly else x).mul_(2.0)
            return self.linear(x / 2)
        return self.linear(x)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("num_draws", [5, 12])  # one by one, and together where that can be done
def test_a_model_may_write_to_its_inputs(every, inference, num_draws):
    with torch.inference_mode(inference):
        model, x = Scribbles(every), torch.randn(6, 4)
        kept = x.clone()
        posterior = Draws.around(model, num_draws)
        found = predict(Objective(model, Categorical()), posterior, x, num_draws, seed=0, keep_draws=True)
        linear = [{name.split(".")[1]: w for name, w in weights.items()} for weights in posterior.weights]
        truth = torch.stack([torch.func.functional_call(model.linear, w, (kept,)).softmax(-1) for w in linear])
        assert torch.allclose(found.draws, truth, atol=1e-6)
        assert torch.equal(x, kept)


def test_a_model_may_write_to_its_inputs_behind_torchs_back():
    model, x = Scribbles(1, secretly=True), torch.randn(6, 4)
    kept, posterior = x.clone(), Draws.around(model, 5)
    found = predict(Objective(model, Categorical()), posterior, x, 5, seed=0, keep_draws=True)
    linear = [{name.split(".")[1]: w for name, w in weights.items()} for weights in posterior.weights]
    truth = torch.stack([torch.func.functional_call(model.linear, w, (kept,)).softmax(-1) for w in linear])
    assert torch.allclose(found.draws, truth, atol=1e-6)
    assert torch.equal(x, kept)


def linear_with_dropout(width, rate):
    model = nn.Sequential(nn.Dropout(rate), nn.Linear(width, 1))
    return model, Draws([{n: p.detach() for n, p in model.named_parameters()}], keeps_dropout=True)


@pytest.mark.parametrize("limit", [2**28, pytest.param(2**14, marks=pytest.mark.slow)])
def test_dropout_draws_have_the_mean_and_the_variance_of_theory(limit):
    """``f = sum_j w_j m_j x_j / (1 - p) + b``, so the variance is ``p / (1 - p) sum_j (w_j x_j)^2``."""
    rate, width, records, draws = 0.2, 40, 50, 2000
    model, posterior = linear_with_dropout(width, rate)
    x = torch.randn(records, width)
    prediction = predict(Objective(model, HomoscedasticGaussian(0.5)), posterior, x, draws, seed=1, memory_limit=limit)
    assert prediction.num_draws == prediction.requested_draws == draws
    products = (model[1].weight.detach() * x).double()
    variance = rate / (1 - rate) * products.square().sum(dim=1)
    errors = (prediction.mean[:, 0].double() - products.sum(dim=1) - model[1].bias.item()) / (variance / draws).sqrt()
    assert errors.abs().max() < 5
    assert errors.square().mean().item() == pytest.approx(1.0, abs=5 * math.sqrt(2 / records))
    ratio = (prediction.epistemic_variance[:, 0].double() / variance).mean().item()
    tolerance = 5 * math.sqrt(2 / (draws * records))
    assert ratio == pytest.approx(1.0, abs=tolerance)
    for wrong in (1 - rate, 1 / (1 - rate), rate / (1 - rate), (draws - 1) / draws * 0.97):
        assert ratio != pytest.approx(wrong, abs=tolerance)
    assert prediction.aleatoric_variance.unique().tolist() == pytest.approx([0.25])


@pytest.mark.filterwarnings("ignore:memory_limit is in bytes")
@pytest.mark.parametrize("limit", [2**28, 1])
def test_masks_are_independent_between_draws_and_between_records(limit):
    model, posterior = linear_with_dropout(30, 0.5)
    objective, x = Objective(model, HomoscedasticGaussian(1.0)), torch.ones(6, 30)  # six times the same record
    draws = predict(objective, posterior, x, 500, seed=0, memory_limit=limit).means[:, :, 0]
    assert len(draws.unique()) > 2900
    correlations = torch.corrcoef(draws.T) - torch.eye(6)
    assert correlations.abs().max() < 5 / math.sqrt(500)
    over_time = torch.corrcoef(torch.stack([draws[:-1].flatten(), draws[1:].flatten()]))[0, 1]
    assert over_time.abs() < 5 / math.sqrt(3000)


def test_masks_differ_between_parts_of_a_stream():
    model, posterior = linear_with_dropout(30, 0.5)
    objective = Objective(model, HomoscedasticGaussian(1.0))
    predictor = Predictor(partial(nullcontext, objective), posterior, 20, seed=0)
    first, second = predictor.in_parts(torch.ones(2, 30), rows=1)
    assert not torch.equal(first.means, second.means)
    again, _ = predictor.in_parts(torch.ones(2, 30), rows=1)
    assert torch.equal(first.means, again.means)


def test_dropout_is_off_where_the_posterior_does_not_keep_it():
    model = MLP(4, [30], 3, "tanh", dropout=0.5)
    objective, x = Objective(model, Categorical()), torch.randn(5, 4)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    point = predict(objective, dpbnn.posterior.PointEstimate(weights), x, 50, seed=None)
    assert torch.allclose(point.probabilities, copy.deepcopy(model).eval()(x).softmax(1).detach())
    assert (point.num_draws, point.requested_draws) == (1, 50)
    assert point.mutual_information.tolist() == [0.0] * 5
    masked = predict(objective, dpbnn.posterior.DropoutNetwork(weights), x, 50, seed=None)
    assert masked.num_draws == 50
    assert (masked.mutual_information > 0).all()


def test_a_posterior_that_keeps_dropout_needs_dropout_layers():
    model = MLP(4, [6], 3)
    posterior = Draws.around(model, 1)
    posterior.keeps_dropout = True
    with pytest.raises(DpbnnError, match="needs a model with dropout layers, and MLP has none"):
        predict(Objective(model, Categorical()), posterior, torch.ones(1, 4), 3, seed=0)


@pytest.mark.parametrize("posterior", ["mean_field", "dropout_network"])
def test_a_seed_repeats_the_draws_and_touches_nobody_elses_generator(posterior):
    model = MLP(4, [6], 3, dropout=0.5)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    forms = {
        "mean_field": lambda: dpbnn.posterior.MeanField(weights, {n: torch.ones_like(v) for n, v in weights.items()}),
        "dropout_network": lambda: dpbnn.posterior.DropoutNetwork(weights),
    }
    x, before = torch.randn(5, 4), torch.get_rng_state()

    def probabilities(seed):
        return predict(Objective(model, Categorical()), forms[posterior](), x, 10, seed).probabilities

    assert torch.equal(probabilities(3), probabilities(3))
    assert not torch.equal(probabilities(3), probabilities(4))
    assert not torch.equal(probabilities(None), probabilities(None))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_always_draws_is_repeatable_too():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 3)

    model = Noisy(4, 3)
    posterior, x = Draws.around(model, 20), torch.zeros(2, 4)
    first, second = (predict(Objective(model, Categorical()), posterior, x, 20, seed=5) for _ in range(2))
    assert torch.equal(first.probabilities, second.probabilities)
    assert not torch.equal(first.probabilities[0], first.probabilities[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MODELS)
def test_a_device_predicts_what_the_cpu_does(name):
    make, shape, _ = MODELS[name]
    model = make().double()
    posterior, x = Draws.around(model, 20), torch.randn(300, *shape).double()
    on_cpu = predict(Objective(model, Categorical()), posterior, x, 20, seed=0)
    before = torch.cuda.get_rng_state()
    on_device = predict(Objective(model.cuda(), Categorical()), posterior, x, 20, seed=0)
    assert torch.allclose(on_cpu.probabilities, on_device.probabilities, atol=1e-9)
    assert on_device.probabilities.device.type == "cpu"
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_masks_on_a_device_are_repeatable_and_leave_its_generator_alone():
    class Layered(Recurrent):
        def __init__(self):
            super().__init__(nn.LSTM)
            self.body = nn.LSTM(4, 6, num_layers=2, dropout=0.5, batch_first=True)

    for model, shape in ((MLP(4, [30], 3, "tanh", dropout=0.5), (4,)), (Layered(), (5, 4))):
        objective, x = Objective(model.cuda(), Categorical()), torch.ones(3, *shape)
        posterior = Draws([{n: p.detach() for n, p in model.named_parameters()}], keeps_dropout=True)
        before = torch.cuda.get_rng_state()
        first, second, other = (predict(objective, posterior, x, 20, seed, keep_draws=True) for seed in (0, 0, 1))
        assert torch.equal(first.draws, second.draws)
        assert not torch.equal(first.draws, other.draws)
        assert len(first.draws.flatten(0, 1).unique(dim=0)) > 20
        assert torch.equal(torch.cuda.get_rng_state(), before)
