"""What no rule covers is still right, through the fallbacks; and nothing is ever silently dropped."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.engines import ENGINES
from dpbnn.errors import DpbnnWarning
from dpbnn.models.likelihoods import Categorical
from tests.truth import assert_equals_truth, clipped_sum

CLASSES = 3


class Wrapped(nn.Module):
    """A sequence model: `inner` maps ``[records, time, 8]`` to the same shape, then a classifier on the mean."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, x):
        h = self.inner(x)
        return self.classifier((h[0] if isinstance(h, tuple) else h).mean(1))


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class BareParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.scale * self.temperature


class StrayUse(nn.Module):
    """Uses a layer's weight a second time, outside the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return F.linear(torch.tanh(self.layer(x)), self.layer.weight)


class StrayInput(nn.Module):
    """Feeds one layer's weight into another layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x @ self.second(self.first.weight) + self.first(x)


class NeverCalled(nn.Module):
    """Reads a layer's weight without ever calling the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return F.linear(x, weight=self.layer.weight, bias=self.layer.bias)


class ReadsType(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.dtype).to(self.layer.weight.device))


class TimeFirst(nn.Module):
    """Keeps records apart, but in the second dimension."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1)


class Flattened(nn.Module):
    """Merges records and positions into one dimension."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.layer(x.reshape(-1, 8))).reshape(x.shape)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Branches(nn.Module):
    """Two first layers; neither is downstream of the other."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.left(x)) * self.right(x)


class WritesToOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).mul_(2.0).relu_())


class UserHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.layer.register_forward_hook(lambda module, args, output: 3 * output)
        self.layer.register_forward_pre_hook(lambda module, args: (2 * args[0],))

    def forward(self, x):
        return torch.tanh(self.layer(x))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


class LinearSubclass(nn.Linear):
    def forward(self, x):
        return super().forward(x) * self.weight.sum()


def patched():
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: F.linear(x, layer.weight * 2, layer.bias)
    return layer


def TwoNames():
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.Tanh(), layer)


MODELS = {
    "bare parameters": (BareParameter, "book_keeping"),
    "attention": (SelfAttention, "book_keeping"),
    "lstm": (lambda: nn.LSTM(8, 8, batch_first=True), "vmap"),
    "gru": (lambda: nn.GRU(8, 8, batch_first=True), "loop"),
    "rnn": (lambda: nn.RNN(8, 8, batch_first=True), "loop"),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), "book_keeping"),
    "a weight used outside its layer": (StrayUse, "book_keeping"),
    "a weight as another layer's input": (StrayInput, "vmap"),
    "a layer that is never called": (NeverCalled, "book_keeping"),
    "a weight asked for its type": (ReadsType, "book_keeping"),
    "time first": (TimeFirst, "book_keeping"),
    "records and positions merged": (Flattened, "book_keeping"),
    "tied weights": (Tied, "book_keeping"),
    "one layer under two names": (TwoNames, "book_keeping"),
    "branches": (Branches, "book_keeping"),
    "written to after the layer": (WritesToOutput, "book_keeping"),
    "in-place module": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), "book_keeping"),
    "hooks of the user's own": (UserHook, "book_keeping"),
    "a layer not used": (Unused, "book_keeping"),
    "a subclass that computes something else": (lambda: LinearSubclass(8, 8), "book_keeping"),
    "a replaced forward": (patched, "vmap"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), "vmap"),
    "prelu": (lambda: nn.Sequential(nn.PReLU(5), nn.Linear(8, 8)), "vmap"),
    "transposed convolution": (lambda: nn.ConvTranspose1d(5, 5, 3, padding=1), "vmap"),
    "frozen batch norm": (lambda: nn.BatchNorm1d(5).eval(), "vmap"),
}


@pytest.mark.filterwarnings("ignore:.*vmap:UserWarning", "ignore:.*performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore:Neither book-keeping:dpbnn.errors.DpbnnWarning")
@pytest.mark.parametrize("name", MODELS)
def test_any_model_that_keeps_records_apart_gives_the_truth(name):
    make, engine = MODELS[name]
    model = Wrapped(make())
    parameters = dict(model.named_parameters())
    for size in (0, 1, 5, 7):  # 5 is also the number of time steps
        x, y = torch.randn(size, 5, 8), torch.randint(CLASSES, (size,))
        assert check_model(model, Categorical(), x, y).engine == engine
        for clip_norm in (0.2, math.inf):
            clipped = clipped_gradient_sum(model, Categorical(), x, y, clip_norm)
            assert clipped.gradients.keys() == {name for name, p in parameters.items() if p.requires_grad}
            assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, clip_norm))
    assert all(p is parameters[name] for name, p in model.named_parameters())  # not replaced, whatever was run


@pytest.mark.filterwarnings("ignore:.*vmap:UserWarning", "ignore:.*performance drop:UserWarning")
@pytest.mark.parametrize("layer", ["attention", "transformer layer"])
def test_the_fused_paths_of_evaluation_mode_are_right_too(layer):
    model = Wrapped(MODELS[layer][0]()).eval()
    x, y = torch.randn(5, 5, 8), torch.randint(CLASSES, (5,))
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


def test_the_last_resort_says_that_it_is_slow():
    model = Wrapped(nn.GRU(8, 8, batch_first=True))
    with pytest.warns(DpbnnWarning, match="one record at a time"):
        clipped_gradient_sum(model, Categorical(), torch.randn(2, 5, 8), torch.zeros(2, dtype=torch.long), 1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_engines_agree(engine):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES))
    x, y = torch.randn(4, 1, 6, 6), torch.randint(CLASSES, (4,))
    objective = check_model(model, Categorical(), x, y).objective
    weights = objective.model_weights()
    expected = ENGINES["loop"](objective, weights, x, y)
    for name, values in ENGINES[engine](objective, weights, x, y).items():
        assert torch.allclose(values.dense().values, expected[name].dense().values, atol=1e-6), name


def test_callers_modes_do_not_matter():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    x, y = torch.randn(7, 8), torch.randint(CLASSES, (7,))
    expected = clipped_sum(model, Categorical(), x, y, 0.2)
    with torch.no_grad():
        assert_equals_truth(clipped_gradient_sum(model, Categorical(), x, y, 0.2), expected)
    with torch.inference_mode():
        assert_equals_truth(clipped_gradient_sum(model, Categorical(), x.clone(), y, 0.2), expected)
    assert_equals_truth(clipped_gradient_sum(model, Categorical(), x.clone().requires_grad_(), y, 0.2), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert all(g.dtype == torch.float32 for g in clipped.gradients.values())
    assert_equals_truth(clipped, expected, tolerance=0.03)


def test_dropout_draws_one_mask_per_record():
    class Masks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.dropout = nn.Linear(64, 64, bias=False), nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(self.layer(x))

    for engine in ("book_keeping", "vmap"):
        model = Masks()
        x, y = torch.ones(2, 64), torch.zeros(2, dtype=torch.long)
        objective = check_model(model, Categorical(), x, y).objective
        gradients = ENGINES[engine](objective, objective.model_weights(), x, y)["layer.weight"].dense().values
        dropped = gradients.abs().sum(2) == 0
        assert not torch.equal(dropped[0], dropped[1])
