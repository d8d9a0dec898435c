"""Clipping in mean and spread together: exact against a plain loop, and bounded whatever the records hold."""

import math

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping import check_model, clip_and_sum
from dpbnn.clipping.engines import ENGINES
from dpbnn.types import Draws
from tests.truth import ROOM

CATEGORICAL = dpbnn.Categorical()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x).mean(dim=1))


class Bare(nn.Module):
    """A weight outside of any layer, so that only vmap covers it; one input in three is left out of its loss."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x * self.scale)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), lambda n: torch.randn(n, 5)),
    "positions": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 3)),
        lambda n: torch.randn(n, 5, 4),
    ),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)),
        lambda n: torch.randn(n, 1, 6, 6),
    ),
    "tokens": (Tokens, lambda n: torch.randint(0, 11, (n, 6))),
    "bare": (Bare, lambda n: torch.randn(n, 5)),
    "used twice": (
        lambda: nn.Sequential(*(lambda layer: [layer, nn.Tanh(), layer, nn.Tanh()])(nn.Linear(5, 5)), nn.Linear(5, 3)),
        lambda n: torch.randn(n, 5),
    ),
}


def made(name, num_draws, records=6):
    torch.manual_seed(3)
    model, x = MODELS[name][0](), MODELS[name][1](records)
    y = torch.arange(records) % 3
    base = {n: p.detach() for n, p in model.named_parameters()}
    draws = Draws(
        tuple({n: v + 0.3 * torch.randn_like(v) for n, v in base.items()} for _ in range(num_draws)),
        tuple({n: torch.randn_like(v) for n, v in base.items()} for _ in range(num_draws)),
    )
    return model, x, y, draws


def truth(model, x, y, draws, clip_norm):
    """One record at a time by autograd: ``(1/N) sum_j (g_j, M_j g_j)``, clipped as one vector."""
    total = {name: torch.zeros(2, *v.shape, dtype=torch.float64) for name, v in draws.weights[0].items()}
    norms = []
    for one_x, one_y in zip(x, y, strict=True):
        own = {name: torch.zeros_like(values) for name, values in total.items()}
        for weights, multipliers in zip(draws.weights, draws.multipliers, strict=True):
            leaves = {name: v.clone().requires_grad_() for name, v in weights.items()}
            outputs = torch.func.functional_call(model, leaves, (one_x[None],), tie_weights=False)
            loss = CATEGORICAL.negative_log_likelihood(outputs, one_y[None], {}).sum()
            for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                pair = torch.stack([gradient, multipliers[name] * gradient]).double()
                own[name] += pair / len(draws.weights)
        norms.append(math.sqrt(sum(float(v.square().sum()) for v in own.values())))
        factor = min(1.0, clip_norm / ROOM / norms[-1])
        for name, values in own.items():
            total[name] += factor * values
    return total, norms


@pytest.mark.parametrize("num_draws", [1, 3])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", [None, "vmap", "loop"])
def test_every_engine_equals_a_plain_loop(name, num_draws, engine):
    model, x, y, draws = made(name, num_draws)
    checked = check_model(model, CATEGORICAL, x, y)
    if engine is not None:
        checked = type(checked)(**vars(checked) | {"engine": engine})
    _, norms = truth(model, x, y, draws, 1.0)
    clip_norm = sorted(norms)[len(norms) // 2]  # some are clipped, some are not
    expected, _ = truth(model, x, y, draws, clip_norm)
    scale = math.sqrt(sum(float(v.square().sum()) for v in expected.values()))
    for options in ({}, {"micro_batch_size": 4}):
        found = clip_and_sum(checked, draws, x, y, clip_norm, **options)
        assert found.sensitivity == clip_norm
        for key, values in expected.items():
            assert float((found.gradients[key].double() - values).norm()) <= 1e-5 * scale, key


def test_the_book_keeping_engine_writes_nothing_out_for_an_mlp():
    model, x, y, _ = made("mlp", 1)
    checked = check_model(model, CATEGORICAL, x, y)
    assert checked.engine == "book_keeping"
    assert checked.numbers_written_out == 7 + 3  # the biases
    model, x, y, _ = made("cnn", 1)
    assert check_model(model, CATEGORICAL, x, y).numbers_written_out > 27


@pytest.mark.parametrize("num_draws", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "cnn", "tokens"])
@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(name, num_draws, clipping):
    model, x, y, draws = made(name, num_draws)
    huge = tuple({n: 30 * v for n, v in m.items()} for m in draws.multipliers)
    draws = Draws(draws.weights, huge)
    checked = check_model(model, CATEGORICAL, x, y)
    for factor in (1.0, 1e-20, 1e4, 1e15, 1e30, math.inf, math.nan):
        if x.is_floating_point():
            x[0] = torch.randn_like(x[0]) * factor
        one = clip_and_sum(checked, draws, x[:1], y[:1], 0.5, clipping=clipping).gradients
        length = math.sqrt(sum(float(v.double().square().sum()) for v in one.values()))
        assert length <= 0.5, (factor, length)
        with_it = clip_and_sum(checked, draws, x, y, 0.5, clipping=clipping).gradients
        without = clip_and_sum(checked, draws, x[1:], y[1:], 0.5, clipping=clipping).gradients
        moved = math.sqrt(sum(float((with_it[n].double() - without[n].double()).square().sum()) for n in one))
        assert moved <= 0.5 * (1 + 1e-5)


def test_draws_that_cancel_do_not_hide_a_record():
    """Two draws whose gradients are opposite up to rounding: what is left is counted by its terms."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 1, bias=False), nn.Linear(1, 2, bias=False))
    x, y = 1e4 * torch.randn(4, 400), torch.tensor([0, 1, 0, 1])
    first = {"0.weight": torch.zeros(1, 400), "1.weight": torch.tensor([[1.0], [-1.0]])}
    second = {"0.weight": torch.zeros(1, 400), "1.weight": torch.tensor([[-1.0], [1.0 + 1e-6]])}
    ones = {name: torch.ones_like(v) for name, v in first.items()}
    checked = check_model(model, CATEGORICAL, x, y)
    for record in range(4):
        found = clip_and_sum(checked, Draws((first, second), (ones, ones)), x[[record]], y[[record]], 1e-3)
        length = math.sqrt(sum(float(v.double().square().sum()) for v in found.gradients.values()))
        assert length <= 1e-3


def test_an_empty_batch_gives_zeros_in_both():
    model, x, y, draws = made("cnn", 2)
    found = clip_and_sum(check_model(model, CATEGORICAL, x, y), draws, x[:0], y[:0], 1.0)
    assert {n: v.shape for n, v in found.gradients.items()} == {n: (2, *v.shape) for n, v in draws.weights[0].items()}
    assert all(not v.any() for v in found.gradients.values())


def test_a_half_precision_model_is_summed_in_float32():
    model, x, y, draws = made("mlp", 1)
    half = model.bfloat16()
    checked = check_model(half, CATEGORICAL, x.bfloat16(), y)
    found = clip_and_sum(checked, draws, x.bfloat16(), y, 1.0)
    assert all(v.dtype == torch.float32 for v in found.gradients.values())
    assert set(ENGINES) == {"book_keeping", "vmap", "loop"}
