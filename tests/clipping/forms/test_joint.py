"""Clipping in mean and spread together: exact against a plain loop, and bounded whatever the records hold."""

import math

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping import ClippingSettings, check_model, clip_and_sum
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.forms.per_record import row_norms
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
    "one place": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 6), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)),
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
        found = clip_and_sum(checked, draws, x, y, ClippingSettings(clip_norm, **options))
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


@pytest.mark.guarantees(
    "Adding or removing one record moves `gradients`, all of them taken together as one vector, by at most "
    "`sensitivity` in the Euclidean norm."
)
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
        one = clip_and_sum(checked, draws, x[:1], y[:1], ClippingSettings(0.5, clipping)).gradients
        length = math.sqrt(sum(float(v.double().square().sum()) for v in one.values()))
        assert length <= 0.5, (factor, length)
        with_it = clip_and_sum(checked, draws, x, y, ClippingSettings(0.5, clipping)).gradients
        without = clip_and_sum(checked, draws, x[1:], y[1:], ClippingSettings(0.5, clipping)).gradients
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
        found = clip_and_sum(
            checked, Draws((first, second), (ones, ones)), x[[record]], y[[record]], ClippingSettings(1e-3)
        )
        length = math.sqrt(sum(float(v.double().square().sum()) for v in found.gradients.values()))
        assert length <= 1e-3


@pytest.mark.guarantees("An empty batch gives zeros.")
def test_an_empty_batch_gives_zeros_in_both():
    model, x, y, draws = made("cnn", 2)
    found = clip_and_sum(check_model(model, CATEGORICAL, x, y), draws, x[:0], y[:0], ClippingSettings(1.0))
    assert {n: v.shape for n, v in found.gradients.items()} == {n: (2, *v.shape) for n, v in draws.weights[0].items()}
    assert all(not v.any() for v in found.gradients.values())


def test_a_half_precision_model_is_summed_in_float32():
    model, x, y, draws = made("mlp", 1)
    half = model.bfloat16()
    checked = check_model(half, CATEGORICAL, x.bfloat16(), y)
    found = clip_and_sum(checked, draws, x.bfloat16(), y, ClippingSettings(1.0))
    assert all(v.dtype == torch.float32 for v in found.gradients.values())
    assert set(ENGINES) == {"book_keeping", "vmap", "loop"}


@pytest.mark.parametrize("num_draws", [1, 3])
def test_many_records_whose_draws_cancel_do_not_drown_one_another(num_draws):
    """With residuals of opposite signs in the draws, partial sums are a million times what is left of them."""
    torch.manual_seed(37)
    size, likelihood = 4096, dpbnn.HomoscedasticGaussian(noise_std=1.0)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    method = dpbnn.BBP(0.1, form="joint", num_draws=num_draws, initial_std=1e-5)
    plan = dpbnn.PrivacyPlan(10**5, size, 2, clip_norm=1.0, noise_multiplier=1.0, delta=1e-6)
    where = method.weights(method.init({"weight": model.weight.detach()}, plan, 37), 0)
    x = torch.randn(1).abs().expand(size, 1) * (torch.rand(size, 1) + 0.5) * 1e6
    outputs = torch.stack([x.double() @ weights["weight"].double().T for weights in where.weights])
    middle = outputs.mean(dim=0)
    y = (middle + 2.4e-3 * (outputs - middle).abs().mean(dim=0)).float()
    checked = check_model(model, likelihood, x, y)
    whole = clip_and_sum(checked, where, x, y, ClippingSettings(1.0)).gradients["weight"].double()
    for record in (0, size // 2, size - 1):
        others = torch.arange(size) != record
        without = clip_and_sum(checked, where, x[others], y[others], ClippingSettings(1.0)).gradients["weight"].double()
        assert float((whole - without).norm()) <= 1.001


@pytest.mark.parametrize(("inputs", "outputs", "positions"), [(1000, 1000, 2), (3, 100_000, 1)])
def test_long_rows_are_measured_to_the_room_for_rounding(inputs, outputs, positions):
    """Equal numbers in long rows: float32 alone would understate their norm."""
    model = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(model.weight)
    x, y = torch.ones(1, positions, inputs), torch.full((1, positions * outputs), 1e3)
    flattened = nn.Sequential(model, nn.Flatten())
    likelihood = dpbnn.HomoscedasticGaussian(1.0)
    checked = check_model(flattened, likelihood, x, y)
    weights = checked.objective.model_weights()
    ones = {name: torch.ones_like(values) for name, values in weights.items()}
    for where in (weights, Draws((weights,), (ones,))):
        found = clip_and_sum(checked, where, x, y, ClippingSettings(1.0)).gradients
        assert math.sqrt(sum(float(v.double().square().sum()) for v in found.values())) <= 1.0 + 1e-6


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e30])
def test_multipliers_that_are_not_finite_do_not_show_whether_a_batch_was_empty(bad):
    model, x, y, draws = made("mlp", 1)
    broken = {name: torch.full_like(values, bad) for name, values in draws.multipliers[0].items()}
    checked = check_model(model, CATEGORICAL, x, y)
    for records in (0, 4):
        found = clip_and_sum(
            checked, Draws(draws.weights, (broken,)), x[:records], y[:records], ClippingSettings(1.0)
        ).gradients
        assert all(values.isfinite().all() for values in found.values())


@pytest.mark.guarantees("Names, shapes and types of what is released do not depend on the records.")
def test_types_of_what_is_released_do_not_depend_on_the_number_of_records():
    from dpbnn.privacy.noise.mechanism import add_noise
    from dpbnn.privacy.noise.randomness import Randomness
    from dpbnn.privacy.noise.source import StandardNoise

    for name, num_draws in (("mlp", 0), ("mlp", 2)):
        model, x, y, draws = made(name, max(1, num_draws), records=4097)
        checked = check_model(model, CATEGORICAL, x, y)
        where = draws if num_draws else draws.weights[0]
        seen = set()
        for records in (0, 1, 4096, 4097):
            clipped = clip_and_sum(checked, where, x[:records], y[:records], ClippingSettings(1.0))
            noisy = add_noise(clipped, 1.0, StandardNoise(Randomness.from_seed(0)), 0).gradients
            seen.add(tuple((key, values.dtype, values.shape) for key, values in noisy.items()))
        assert len(seen) == 1


def test_norms_of_long_rows_are_exact():
    for length in (1, 4096, 4097, 10**6 + 1):
        values = torch.full((2, length), 0.1)
        assert row_norms(values).tolist() == pytest.approx(
            [float(values[0].double().norm())] * 2, rel=2e-5
        )  # the room for rounding is 1e-4
