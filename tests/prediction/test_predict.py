"""Prediction over draws: vectorised or not, in whatever parts, it is the plain average over networks run one by one."""

import copy
import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping.objective import Objective
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from dpbnn.models.networks import CNN, MLP
from dpbnn.prediction.ensemble import FEWEST_TOGETHER, Ensemble, Known, PeakMemory, layout
from dpbnn.prediction.predict import Predictor, predict


class Draws:
    """A posterior that holds some weights; with `keeps_dropout` the first of them."""

    kind = "draws"

    def __init__(self, weights, keeps_dropout=False):
        self.weights, self.keeps_dropout = weights, keeps_dropout

    @staticmethod
    def around(model, count, spread=0.3, extra=()):
        start = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad} | dict(extra)
        return Draws([{n: v + spread * torch.randn_like(v) for n, v in start.items()} for _ in range(count)])

    @property
    def names(self):
        return tuple(self.weights[0])

    def draw(self, num_draws, seed):
        assert isinstance(seed, int)
        yield from self.weights[: 1 if self.keeps_dropout else num_draws]

    def tensors(self):
        return {}


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(dim=1))


class Deciding(nn.Module):
    """Runs another way for weights of one sign."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if self.layer.bias.sum() > 0 else self.layer(x).tanh()


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x):
        x *= self.scale
        return self.layer(torch.relu_(x))


def frozen():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    model[1].running_mean.normal_()
    return model


MODELS = {  # the model, a record's shape, whether vmap can run it
    "mlp": (lambda: MLP(4, [6, 5], 3), (4,), True),
    "cnn": (lambda: CNN(outputs=3), (1, 28, 28), True),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 4), False),
    "gru": (lambda: Recurrent(nn.GRU), (5, 4), False),
    "transformer": (Attentive, (5, 4), False),
    "deciding": (Deciding, (4,), False),
    "overwriting": (Overwriting, (4,), False),
    "frozen": (frozen, (4,), True),
    "dropout": (lambda: MLP(4, [6], 3, dropout=0.5), (4,), True),
}


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


@pytest.mark.filterwarnings("ignore:memory_limit is in bytes")
@pytest.mark.parametrize("limit", [1, 2**12, 2**16, 2**20])
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_memory_stays_within_the_limit_and_the_numbers_the_same(name, limit):
    make, shape, _ = MODELS[name]
    model, x = make().double(), torch.randn(60, *shape).double()
    objective, posterior = Objective(model, Categorical()), Draws.around(model, 12)
    whole = predict(objective, posterior, x, 12, seed=0, keep_draws=True)
    parted = predict(objective, posterior, x, 12, seed=0, keep_draws=True, memory_limit=limit)
    assert torch.allclose(parted.probabilities, whole.probabilities, atol=1e-11)
    assert torch.allclose(parted.expected_entropy, whole.expected_entropy, atol=1e-11)
    assert torch.allclose(parted.draws, whole.draws, atol=1e-11)

    known = [x, *(values for weights in posterior.weights for values in weights.values())]
    one_record = peak(known, lambda: predict(objective, posterior, x[:1], 1, seed=0))
    used = peak(known, lambda: predict(objective, posterior, x, 12, seed=0, memory_limit=limit))
    results = whole.probabilities.nbytes + whole.expected_entropy.nbytes
    assert used <= max(limit, one_record) + 2 * results  # in parts, and joined


def peak(known, run):
    with PeakMemory(known) as memory:
        run()
    return memory.peak


def chosen(model, x, num_draws, limit, keeps_dropout=False):
    posterior = Draws([{n: p.detach() for n, p in model.named_parameters()}] * num_draws, keeps_dropout)
    ensemble = Ensemble(Objective(model, Categorical()), posterior, num_draws, seed=0)
    with torch.no_grad(), ensemble.mode():
        return layout(ensemble, x[:1], len(x), limit, lambda predicted: None, Known())


def test_rows_and_draws_are_chosen_by_what_they_take():
    small, wide = MLP(4, [6], 3), MLP(784, [1200, 1200], 10)
    assert chosen(small, torch.ones(5, 4), 50, 2**28).draws == 50
    assert chosen(small, torch.ones(5, 4), 50, 2**28).rows == 5
    assert chosen(small, torch.ones(5, 4), FEWEST_TOGETHER - 1, 2**28).draws == 1  # too few to gain anything
    assert chosen(wide, torch.ones(1, 784), 50, 2**28).draws == 1  # ten megabytes of weights: not worth a stack
    of_wide = chosen(wide, torch.ones(10_000, 784), 50, 2**28)
    assert 200 < of_wide.rows < 2000
    assert of_wide.rows < of_wide.part < 10_000 * 5
    for limit in (2**14, 2**16, 2**18):
        found = chosen(small, torch.ones(10_000, 4), 50, limit)
        activations = (4 + 6) * 4  # the widest pair of neighbours
        assert found.rows * activations <= limit // 2
        assert found.draws == 1
        assert found.part * (4 + 3) * 4 <= limit
    masked = chosen(MLP(4, [6], 3, dropout=0.5), torch.ones(5, 4), 50, 2**28, keeps_dropout=True)
    assert (masked.rows, masked.draws) == (5, 50)


def test_what_records_take_is_looked_at_once_for_each_kind_of_them():
    model, passes = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), []
    model.register_forward_hook(lambda *given: passes.append(len(given[1][0])))
    objective, posterior = Objective(model, Categorical()), Draws.around(model, 1)

    known = Known()

    def passes_for(x):
        passes.clear()
        predict(objective, posterior, x, 1, seed=0, known=known)
        return list(passes)

    assert passes_for(torch.ones(5, 4)) == [1, 3, 5]
    assert passes_for(torch.ones(7, 4)) == [7]
    assert passes_for(torch.ones(7, 2, 2)) == [1, 3, 7]
    assert passes_for(torch.ones(7, 2, 2)) == [7]


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


@pytest.mark.parametrize("limit", [2**28, 2**14])
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


def test_the_model_is_left_as_it_was_also_after_an_error():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    model[1].eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    posterior = Draws.around(model, 10)
    for keeps_dropout in (False, True):
        posterior.keeps_dropout = keeps_dropout
        predict(Objective(model, Categorical()), posterior, torch.randn(5, 4), 10, seed=0)
        with pytest.raises(DpbnnError, match=r"X of shape \[5, 3\] and type torch.float32 does not fit the model"):
            predict(Objective(model, Categorical()), posterior, torch.randn(5, 3), 10, seed=0)
    assert all(torch.equal(values, state[name]) for name, values in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


def test_more_draws_than_the_posterior_holds_are_all_of_them_and_it_says_so():
    model = MLP(4, [6], 3)
    prediction = predict(Objective(model, Categorical()), Draws.around(model, 7), torch.ones(2, 4), 100, seed=0)
    assert (prediction.num_draws, prediction.requested_draws) == (7, 100)
    real = predict(Objective(model, HomoscedasticGaussian(1.0)), Draws.around(model, 7), torch.ones(2, 4), 100, seed=0)
    assert (real.num_draws, real.requested_draws) == (7, 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_draws": 0}, "num_draws must be >= 1, got 0"),
        ({"num_draws": -3}, "num_draws must be >= 1, got -3"),
        ({"num_draws": 2.5}, "num_draws must be a whole number, got 2.5"),
        ({"memory_limit": 0}, "memory_limit must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"seed": 2**64}, r"seed must be < 2\*\*63"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings, message):
    class Untouchable:
        keeps_dropout = False

        def draw(self, num_draws, seed):
            pytest.fail("ran")

    with pytest.raises(DpbnnError, match=message):
        predict(
            Objective(MLP(4, [], 3), Categorical()), Untouchable(), [[0.0]], **{"num_draws": 1, "seed": 0, **settings}
        )


class OnDisk:
    """Stands for data that is too large to read: it counts what is asked for."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.slices = values, values.shape, values.dtype, []

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        self.slices.append((rows.start, rows.stop))
        return self.values[rows]


def release():
    model = MLP(4, [6], 3)
    return dpbnn.Release(Draws.around(model, 20), None, model, Categorical())


def test_large_inputs_are_read_once_and_some_rows_at_a_time(tmp_path):
    values = np.random.default_rng(0).normal(size=(1000, 4))
    np.save(tmp_path / "x.npy", values)
    mapped, trained = np.load(tmp_path / "x.npy", mmap_mode="r"), release()
    whole = trained.predict(torch.tensor(values), seed=0)
    assert torch.allclose(trained.predict(mapped, seed=0, memory_limit=2**14).probabilities, whole.probabilities)
    watched = OnDisk(values)
    streamed = trained.predict(watched, seed=0, memory_limit=2**14)
    assert torch.allclose(streamed.probabilities, whole.probabilities, atol=1e-6)
    looked, *read = watched.slices
    assert looked == (0, 1)
    assert [start for start, _ in read] == [0, *(end for _, end in read[:-1])]
    assert max(end - start for start, end in read) < 200
    assert read[-1][1] == 1000


@pytest.mark.parametrize(
    "run",
    [
        lambda trained, X, limit: trained.predict(X, memory_limit=limit),
        lambda trained, X, limit: list(trained.predict_in_parts(X, rows=10, memory_limit=limit)),
    ],
    ids=["at once", "in parts"],
)
def test_a_memory_limit_below_one_row_of_one_draw_gets_one_warning_at_the_line_that_called(run, recwarn):
    trained, X = release(), torch.randn(50, 4)
    weights = sum(p.nbytes for p in trained.model.parameters())
    for limit in (None, 2 * weights):
        run(trained, X, limit)
    assert not recwarn.list
    run(trained, X, weights)
    (found,) = recwarn.list
    assert issubclass(found.category, dpbnn.DpbnnWarning)
    assert f"memory_limit is in bytes: {weights} hold less than one row of one draw" in str(found.message)
    assert found.filename == __file__


def test_prediction_in_parts_is_prediction():
    trained, X = release(), torch.randn(25, 4)
    whole = trained.predict(X, seed=1, keep_draws=True)
    parts = list(trained.predict_in_parts(X, rows=10, seed=1, keep_draws=True))
    assert [len(part.probabilities) for part in parts] == [10, 10, 5]
    assert torch.allclose(torch.cat([part.probabilities for part in parts]), whole.probabilities, atol=1e-6)
    assert torch.allclose(torch.cat([part.mutual_information for part in parts]), whole.mutual_information, atol=1e-6)
    assert torch.allclose(torch.cat([part.draws for part in parts], dim=1), whole.draws, atol=1e-6)
    fresh = [part.probabilities for part in trained.predict_in_parts(X[:1].expand(4, 4), rows=1)]
    assert torch.allclose(torch.cat(fresh), fresh[0].expand(4, 3), atol=1e-6)  # the same draws for all parts
    assert list(trained.predict_in_parts(X[:0], rows=10)) == []
    with pytest.raises(DpbnnError, match="rows must be >= 1, got 0"):
        trained.predict_in_parts(X, rows=0)
    with pytest.raises(DpbnnError, match="num_draws must be >= 1"):
        trained.predict_in_parts(X, rows=10, num_draws=0)


def test_inputs_come_as_lists_arrays_or_data_frames():
    class Frame:
        shape = (3, 4)

        def to_numpy(self):
            return np.ones((3, 4))

    trained = release()
    for X in ([[1.0] * 4] * 3, np.ones((3, 4), dtype=np.float32), Frame()):
        assert torch.allclose(
            trained.predict(X, seed=0).probabilities, trained.predict(torch.ones(3, 4), seed=0).probabilities
        )
    with pytest.raises(DpbnnError, match="one row per record"):
        trained.predict(torch.tensor(1.0))
    with pytest.raises(DpbnnError, match="X must hold numbers"):
        trained.predict(np.array([["a"] * 4]))
    assert trained.predict(torch.ones(0, 4)).probabilities.shape == (0, 3)


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


@pytest.mark.parametrize("draws", [20, 3], ids=["together", "one by one"])
@pytest.mark.parametrize(("precision", "off"), [("float32", 1e-6), ("tf32", 1e-2), ("bfloat16", 0.1)])
def test_a_precision_governs_the_products_and_results_are_in_float32(precision, off, draws):
    model, x = MLP(40, [30], 3), torch.randn(50, 40)
    posterior, objective = Draws.around(model, draws), Objective(model, Categorical())
    exact = predict(objective, posterior, x, draws, seed=0, keep_draws=True)
    found = predict(objective, posterior, x, draws, seed=0, keep_draws=True, precision=precision)
    assert found.probabilities.dtype == found.expected_entropy.dtype == found.draws.dtype == torch.float32
    assert torch.allclose(found.draws, exact.draws, atol=off)
    assert torch.allclose(found.draws.sum(dim=2), torch.ones(()), atol=1e-6)
    assert (precision == "bfloat16") == (not torch.allclose(found.draws, exact.draws, atol=1e-4))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_precision_is_set_for_the_prediction_alone(precision):
    model = MLP(4, [6], 3)
    during, before = [], (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    model.register_forward_pre_hook(
        lambda *_: during.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
    )
    predict(Objective(model, Categorical()), Draws.around(model, 3), torch.ones(2, 4), 3, seed=0, precision=precision)
    assert set(during) == {("highest" if precision == "float32" else "high", precision == "tf32")}
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    assert not torch.is_autocast_enabled("cpu")


def test_a_user_s_own_autocast_does_not_reach_a_prediction_in_float32():
    model, x = MLP(40, [30], 3), torch.randn(50, 40)
    objective, posterior = Objective(model, Categorical()), Draws.around(model, 3)
    exact = predict(objective, posterior, x, 3, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        asked = predict(objective, posterior, x, 3, seed=0, precision="float32")
        left = predict(objective, posterior, x, 3, seed=0)
    assert torch.allclose(asked.probabilities, exact.probabilities, atol=1e-6)
    assert not torch.allclose(left.probabilities, exact.probabilities, atol=1e-5)


def test_real_outputs_in_half_precision_come_back_in_float32():
    model, x = MLP(4, [6], 2), torch.randn(7, 4)
    objective = Objective(model, HomoscedasticGaussian(0.5))
    found = predict(objective, Draws.around(model, 20), x, 20, seed=0, precision="bfloat16")
    assert found.means.dtype == found.variances.dtype == torch.float32
    exact = predict(objective, Draws.around(model, 20), x, 20, seed=0)
    assert found.means.shape == exact.means.shape


def test_an_unknown_precision_is_refused():
    model = MLP(4, [6], 3)
    with pytest.raises(DpbnnError, match="precision must be one of 'float32', 'tf32', 'bfloat16', got 'half'"):
        Predictor(Objective(model, Categorical()), Draws.around(model, 3), 3, precision="half")
