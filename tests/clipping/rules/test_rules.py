"""Every rule against the truth: all layer types and options, dtypes, batch sizes 0, 1 and 7."""

import math

import pytest
import torch
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.rules import RULES
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from tests.truth import assert_equals_truth, clipped_sum

CLASSES = 3


class Head(nn.Module):
    """Any layer, followed by a mean over positions and a linear classifier, so that its output counts."""

    def __init__(self, layer, features):
        super().__init__()
        self.layer = layer
        self.classifier = nn.Linear(features, CLASSES)

    def forward(self, x):
        h = torch.tanh(self.layer(x)).flatten(1)
        return self.classifier(h)


def width(layer, shape, integers):
    x = torch.zeros(2, *shape, dtype=torch.long) if integers else torch.randn(2, *shape)
    return layer(x).flatten(1).shape[1]


def case(name, make, *shape, integers=False):
    return pytest.param(make, shape, integers, id=name)


LAYERS = [
    case("linear", lambda: nn.Linear(5, 4), 5),
    case("linear without bias", lambda: nn.Linear(5, 4, bias=False), 5),
    case("linear on positions", lambda: nn.Linear(5, 4), 6, 5),
    case("linear on many positions", lambda: nn.Linear(3, 2), 40, 3),
    case("linear on a grid of positions", lambda: nn.Linear(5, 4), 2, 3, 5),
    case("linear, ghost norm", lambda: nn.Linear(40, 40), 3, 40),
    case("conv1d", lambda: nn.Conv1d(3, 4, 3), 3, 9),
    case("conv1d, stride and padding", lambda: nn.Conv1d(3, 4, 3, stride=2, padding=2), 3, 9),
    case("conv1d, reflect", lambda: nn.Conv1d(3, 4, 3, padding=2, padding_mode="reflect"), 3, 9),
    case("conv2d", lambda: nn.Conv2d(2, 3, 3), 2, 6, 7),
    case("conv2d without bias", lambda: nn.Conv2d(2, 3, 3, bias=False), 2, 6, 7),
    case("conv2d, uneven everything", lambda: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2), 2, 8, 9),
    case("conv2d, depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), 4, 5, 5),
    case("conv2d, same", lambda: nn.Conv2d(2, 3, 4, padding="same"), 2, 6, 6),
    case("conv2d, valid", lambda: nn.Conv2d(2, 3, 4, padding="valid"), 2, 6, 6),
    case("conv2d, circular same", lambda: nn.Conv2d(2, 3, 4, padding="same", padding_mode="circular"), 2, 6, 6),
    case("conv2d, replicate", lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="replicate"), 2, 6, 6),
    case("conv2d, leftover columns", lambda: nn.Conv2d(2, 3, 3, stride=3), 2, 7, 8),
    case("conv2d, ghost norm", lambda: nn.Conv2d(12, 20, 3), 12, 4, 4),
    case("conv3d", lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=1, groups=2), 2, 3, 4, 3),
    case("embedding", lambda: nn.Embedding(7, 4), 5, integers=True),
    case("embedding, padding index", lambda: nn.Embedding(7, 4, padding_idx=2), 5, integers=True),
    case("embedding of one token", lambda: nn.Embedding(7, 4), integers=True),
    case("layer norm", lambda: nn.LayerNorm(6), 6),
    case("layer norm on positions", lambda: nn.LayerNorm(6), 4, 6),
    case("layer norm over two dimensions", lambda: nn.LayerNorm((4, 6), bias=False), 3, 4, 6),
    case("group norm", lambda: nn.GroupNorm(2, 6), 6, 4),
    case("group norm on a picture", lambda: nn.GroupNorm(3, 6), 6, 3, 3),
    case("instance norm 1d", lambda: nn.InstanceNorm1d(3, affine=True), 3, 6),
    case("instance norm 2d", lambda: nn.InstanceNorm2d(3, affine=True), 3, 4, 4),
    case("instance norm 3d", lambda: nn.InstanceNorm3d(3, affine=True), 3, 2, 3, 2),
    case("rms norm", lambda: nn.RMSNorm(6), 4, 6),
    case("rms norm with its own epsilon", lambda: nn.RMSNorm(6, eps=0.1), 4, 6),
]


def build(make, shape, integers, dtype=torch.float32):
    layer = make()
    for parameter in layer.parameters():  # weights of one and biases of zero would hide mistakes
        torch.nn.init.normal_(parameter)
    return Head(layer, width(layer, shape, integers)).to(dtype)


def records(size, shape, integers, dtype=torch.float32):
    x = torch.randint(7, (size, *shape)) if integers else 2 * torch.randn(size, *shape, dtype=dtype)
    return x, torch.randint(CLASSES, (size,))


def test_every_rule_has_a_case():
    assert {type(parameters.values[0]()) for parameters in LAYERS} == set(RULES)


@pytest.mark.guarantees("An empty batch gives zeros.")
@pytest.mark.parametrize(("make", "shape", "integers"), LAYERS)
@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_rule_gives_the_truth(make, shape, integers, size):
    model = build(make, shape, integers)
    x, y = records(size, shape, integers)
    assert check_model(model, Categorical(), x, y).engine == "book_keeping"
    for clip_norm in (0.3, 3.0, math.inf):
        clipped = clipped_gradient_sum(model, Categorical(), x, y, clip_norm)
        assert clipped.sensitivity == clip_norm
        assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, clip_norm))


@pytest.mark.parametrize(("make", "shape", "integers"), LAYERS)
def test_a_rule_gives_the_truth_in_float64_to_the_last_digits(make, shape, integers):
    model = build(make, shape, integers, torch.float64)
    x, y = records(7, shape, integers, torch.float64)
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.5)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.5), tolerance=1e-12)
    assert all(g.dtype == torch.float64 for g in clipped.gradients.values())


@pytest.mark.parametrize(("make", "shape", "integers"), LAYERS)
def test_a_bfloat16_model_is_clipped_and_summed_in_float32(make, shape, integers):
    model = build(make, shape, integers, torch.bfloat16)
    x, y = records(7, shape, integers, torch.bfloat16)
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.5)
    assert all(g.dtype == torch.float32 for g in clipped.gradients.values())
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.5), tolerance=0.03)


@pytest.mark.parametrize(("make", "shape", "integers"), LAYERS)
def test_frozen_parameters_take_no_part_in_the_norm(make, shape, integers):
    for frozen in build(make, shape, integers).state_dict():
        model = build(make, shape, integers)
        model.get_parameter(frozen).requires_grad_(False)
        x, y = records(7, shape, integers)
        clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.5)
        assert frozen not in clipped.gradients
        assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.5))


@pytest.mark.parametrize(("make", "shape", "integers"), LAYERS)
def test_a_layer_used_twice_adds_its_gradients_before_the_norm(make, shape, integers):
    class Twice(Head):
        def forward(self, x):
            second = (x + 1) % 7 if integers else x.flip(1)
            h = torch.tanh(self.layer(x)) + 0.5 * torch.sin(self.layer(second))
            return self.classifier(h.flatten(1))

    layer = build(make, shape, integers).layer
    model = Twice(layer, width(layer, shape, integers))
    x, y = records(7, shape, integers)
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.5)
    assert check_model(model, Categorical(), x, y).engine == "book_keeping"
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.5))


def test_automatic_clipping_gives_the_truth():
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    x, y = records(7, (5,), False)
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.7, clipping="automatic")
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.7, clipping="automatic"))


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_learned_noise_scale_is_clipped_jointly_with_the_network(outputs):
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))
    likelihood = HomoscedasticGaussian()
    x, y = torch.randn(7, 5), torch.randn(7, outputs)
    clipped = clipped_gradient_sum(model, likelihood, x, y, 0.7)
    own = {"likelihood.log_std": torch.zeros(outputs)}
    assert_equals_truth(clipped, clipped_sum(model, likelihood, x, y, 0.7, own))
    assert float(clipped.gradients["likelihood.log_std"].abs().min()) > 0
