"""Dropout layers are found, placed without renaming a weight, and kept on at prediction, in whatever hides them."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from dpbnn.errors import DpbnnError
from dpbnn.models.dropout import ACTIVATIONS, dropout_layers, masks_on, with_dropout
from dpbnn.models.networks import CNN, MLP, rebuild


def names(model):
    return [name for name, _ in dropout_layers(model)]


def modes(model):
    return [module.training for module in model.modules()]


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Registered(Functional):
    """One activation, registered last, under two names, and used twice."""

    def __init__(self):
        super().__init__()
        self.middle, self.act = nn.Linear(4, 4), nn.Tanh()
        self.same = self.act

    def forward(self, x):
        return self.second(self.same(self.middle(self.act(self.first(x)))))


def test_dropout_layers_are_the_modules_that_draw_masks():
    drawing = {
        "plain": nn.Dropout(0.1),
        "channels": nn.Dropout2d(0.1),
        "alpha": nn.AlphaDropout(0.1),
        "features": nn.FeatureAlphaDropout(0.1),
        "attention": nn.MultiheadAttention(4, 2, dropout=0.1),
        "lstm": nn.LSTM(3, 4, num_layers=2, dropout=0.1),
        "gru": nn.GRU(3, 4, num_layers=2, dropout=0.1),
    }
    silent = {
        "off": nn.Dropout(0.0),
        "none": nn.MultiheadAttention(4, 2),
        "deep": nn.LSTM(3, 4, num_layers=2),
        "act": nn.ReLU(),
    }
    assert names(nn.ModuleDict(drawing | silent)) == list(drawing)
    assert names(nn.TransformerEncoderLayer(8, 2, 16)) == ["self_attn", "dropout", "dropout1", "dropout2"]


def test_one_activation_registered_twice_is_replaced_in_both_places():
    model = Registered()
    placed = with_dropout(model, 0.25)
    assert placed.act is placed.same
    assert [type(part) for part in placed.act] == [nn.Tanh, nn.Dropout]
    assert placed.act[1].p == 0.25
    with masks_on(placed):
        x = torch.ones(200, 3)
        assert len(placed(x).unique(dim=0)) > 20
    model.eval()
    placed.eval()
    assert torch.equal(model(x), placed(x))
    act = nn.Tanh()
    in_one_parent = with_dropout(nn.Sequential(nn.Linear(2, 2), act, nn.Linear(2, 2), act, nn.Linear(2, 2)), 0.5)
    assert in_one_parent[1] is in_one_parent[3]
    assert isinstance(in_one_parent[3][1], nn.Dropout)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_is_placed_after_every_kind_of_activation(activation):
    arguments = {nn.Threshold: (0.1, 0.0)}.get(activation, ())
    model = nn.Sequential(nn.Linear(3, 4), activation(*arguments), nn.LazyLinear(2)).eval()
    model(torch.ones(1, 3))
    placed = with_dropout(model, 0.5)
    assert names(placed) == ["1.1"]
    assert names(model) == []
    assert list(placed.state_dict()) == list(model.state_dict())
    assert torch.equal(placed(torch.ones(2, 3)), model(torch.ones(2, 3)))  # evaluation mode is kept: no masks


def test_the_copy_shares_nothing_with_the_model():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model[0].bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    placed = with_dropout(model, 0.5)
    assert [(n, p.requires_grad, p.dtype) for n, p in placed.named_parameters()] == [
        (n, p.requires_grad, p.dtype) for n, p in model.named_parameters()
    ]
    with torch.no_grad():
        placed[0].weight.zero_()
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert repr(model[1]) == "ReLU()"


def test_the_outputs_activation_gets_no_dropout():
    inner = nn.Sequential(nn.Linear(4, 2), nn.Sigmoid())
    assert names(with_dropout(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), inner), 0.5)) == ["1.1"]

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softplus())

    assert names(with_dropout(Wrapper(), 0.5)) == ["network.1.1"]


def test_activations_that_shape_weights_are_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    parametrize.register_parametrization(model[0], "weight", nn.Softplus())
    placed = with_dropout(model, 0.5)
    assert names(placed) == ["1.1"]
    assert list(placed.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize(
    ("model", "rate", "message"),
    [
        (
            Functional(),
            0.1,
            r"Functional has no hidden activation .*self.dropout = nn.Dropout\(0.1\).*into its forward",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.PReLU(), nn.Linear(2, 2)), 0.1, "has no hidden activation"),
        (nn.Sequential(nn.ReLU(), nn.Dropout(0.2)), 0.1, "has dropout layers already, the first '1'"),
        (MLP(3, [4], 2, dropout=0.2), 0.1, "has dropout layers already, the first 'layers.2.1'"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), 0.0, "rate must be > 0 and < 1, got 0.0"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), 1.0, "rate must be > 0 and < 1, got 1.0"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "much", "rate must be a finite number, got 'much'"),
        (nn.ReLU, 0.5, "model must be a torch.nn.Module, got the class ReLU"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_cure(model, rate, message):
    with pytest.raises(DpbnnError, match=message):
        with_dropout(model, rate)


@pytest.mark.parametrize("network", [MLP(5, [4, 3], 2, "tanh"), CNN(1, 7)])
def test_a_network_of_ours_is_rebuilt_with_its_dropout(network):
    placed = with_dropout(network, 0.1)
    again = rebuild(type(placed).__name__, json.loads(json.dumps(placed.settings)))
    again.load_state_dict(network.state_dict())
    assert repr(again) == repr(placed)
    assert again.settings == placed.settings == {**network.settings, "dropout": 0.1}
    assert "dropout" not in network.settings
    assert len(dropout_layers(placed)) == (2 if isinstance(placed, MLP) else 3)


class Sequences(nn.Module):
    """Something that reads sequences, and a head."""

    def __init__(self, body):
        super().__init__()
        self.body, self.norm, self.head = body, nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x):
        read = self.body(x, x, x) if isinstance(self.body, nn.MultiheadAttention) else self.body(x)
        return self.head(self.norm((read[0] if isinstance(read, tuple) else read)[:, -1]))


HIDDEN = {
    "transformer layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
    "transformer": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True), 2, enable_nested_tensor=False
    ),
    "attention": lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True),
    "lstm": lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True),
    "gru": lambda: nn.GRU(8, 8, num_layers=2, dropout=0.3, batch_first=True),
    "module": lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3)),
}


@pytest.mark.parametrize("name", HIDDEN)
@torch.no_grad()
def test_masks_are_drawn_for_each_record_wherever_dropout_hides(name):
    model = Sequences(HIDDEN[name]())
    x = torch.ones(16, 5, 8)
    buffers = copy.deepcopy(dict(model.named_buffers()))
    with masks_on(model):
        assert not model.norm.training  # all else is in evaluation mode
        assert len(model(x).unique(dim=0)) > 8
        assert not torch.equal(model(x), model(x))
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())
    model.eval()
    assert torch.allclose(model(x), model(x)[:1].expand(16, 2))


@pytest.mark.parametrize("training", [True, False])
def test_every_mode_is_restored_also_after_an_error(training):
    model = Sequences(HIDDEN["transformer layer"]()).train(training)
    model.head.train(not training)
    before = modes(model)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), masks_on(model):
        raise ZeroDivisionError
    assert modes(model) == before
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
