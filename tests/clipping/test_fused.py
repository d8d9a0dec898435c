"""Kernels for a GPU: on one, and elsewhere in Triton's interpreter, which runs the same code on a CPU."""

import gc
import math

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.audit.rounding import that_round_both_ways
from dpbnn.clipping import ClippingSettings, Sums, check_model, clip_and_sum, fused, summation
from dpbnn.clipping.engines.book_keeping import Trace
from dpbnn.clipping.forms.deferred import Deferred
from dpbnn.clipping.forms.joint import Joint
from dpbnn.clipping.forms.per_record import Dense, Destination, Outer, Reordered, SparseRows
from dpbnn.clipping.forms.tied import Tied
from dpbnn.clipping.gradient import ROUNDING_ROOM
from dpbnn.types import Draws
from tests.clipping.test_many_records import case, moved
from tests.devices import KERNEL_DEVICES

pytest.importorskip("triton")

pytestmark = pytest.mark.parametrize("device", KERNEL_DEVICES)

C = 1.5
LIMIT = C / (1 + ROUNDING_ROOM)


@pytest.fixture
def used_everywhere(monkeypatch):
    monkeypatch.setattr(fused, "is_used_for", lambda values: values.dtype in (torch.float32, torch.float64))


def numbers(device, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype).to(device)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)), (1, 6, 6)


def cnn():
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(*layers), (1, 6, 6)


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3)), (5, 8)


@pytest.mark.parametrize(
    ("in_float64", "small"), [(True, summation.SMALL_PRODUCT), (True, 0), (False, 0)], ids=["one launch", "float64", ""]
)
@pytest.mark.parametrize("clipping", ["flat", pytest.param("automatic", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [mlp, pytest.param(cnn, marks=pytest.mark.slow), transformer])
def test_sums_are_those_of_torchs_own_operations(
    device, monkeypatch, used_everywhere, make, clipping, in_float64, small
):
    """Also with padding and with a record that is no number, which both contribute exactly zero."""
    monkeypatch.setattr(summation, "SMALL_PRODUCT", small)
    launched = []
    real = fused.weighted_product
    monkeypatch.setattr(fused, "weighted_product", lambda *given: (launched.append(1), real(*given)))
    monkeypatch.setattr(summation, "is_done_in_float64", lambda inputs: in_float64 and inputs.dtype == torch.float32)
    torch.manual_seed(0)
    model, shape = make()
    model, x = model.to(device), numbers(device, 9, *shape)
    y = torch.arange(9, device=device) % 3
    checked = check_model(model, dpbnn.Categorical(), x, y)
    weights = checked.objective.model_weights()
    assert checked.engine == "book_keeping"
    x[4] = math.nan
    present = torch.tensor([True] * 7 + [False] * 2, device=device)
    ours = clip_and_sum(checked, weights, x, y, ClippingSettings(0.3, clipping), present=present).gradients
    assert bool(launched) == (small > 0)
    kept = [0, 1, 2, 3, 5, 6]
    monkeypatch.setattr(fused, "is_used_for", lambda values: False)
    truth = clip_and_sum(checked, weights, x[kept], y[kept], ClippingSettings(0.3, clipping)).gradients
    for name, values in truth.items():
        assert ours[name].dtype == values.dtype
        torch.testing.assert_close(ours[name], values, rtol=2e-4, atol=1e-6)


class TiedTable(nn.Module):
    """Tokens are looked up in the table that also makes the outputs; a number comes beside them."""

    def __init__(self):
        super().__init__()
        self.table, self.out, self.number = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(1, 4)
        self.out.weight = self.table.weight

    def forward(self, x):
        tokens = x[:, 0].nan_to_num(0.0).clamp(0, 4).long()
        return self.out(self.table(tokens) + self.number(x[:, 1:2]))


WAYS = {"one launch": (True, summation.SMALL_PRODUCT), "float64": (True, 0), "float32": (False, 0)}


def use(monkeypatch, way):
    in_float64, small = WAYS[way]
    monkeypatch.setattr(fused, "is_used_for", lambda values: values.dtype in (torch.float32, torch.float64))
    monkeypatch.setattr(summation, "SMALL_PRODUCT", small)
    monkeypatch.setattr(summation, "is_done_in_float64", lambda inputs: in_float64 and inputs.dtype == torch.float32)


@pytest.mark.parametrize("bad", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow)])
@pytest.mark.parametrize("draws", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [mlp, TiedTable])
def test_a_record_that_is_no_number_is_left_out_in_every_form(device, monkeypatch, make, way, draws, bad):
    """Also in gradients that are made of others: of tied weights, and of several draws of the weights."""
    use(monkeypatch, way)
    torch.manual_seed(0)
    model, shape = make() if make is not TiedTable else (TiedTable(), (2,))
    model, x = model.to(device), numbers(device, 7, *shape).abs()
    y = torch.arange(7, device=device) % 3
    checked = check_model(model, dpbnn.Categorical(), x, y)
    where = checked.objective.model_weights()
    if draws:
        moved = [{name: v + 0.1 * j for name, v in where.items()} for j in range(draws)]
        where = Draws(tuple(moved), tuple({name: 0.1 * torch.ones_like(v) for name, v in own.items()} for own in moved))
    kept = [0, 1, 2, 4, 5, 6]
    truth = clip_and_sum(checked, where, x[kept], y[kept], ClippingSettings(0.3)).gradients
    x[3].view(-1)[-1] = bad
    for present in (None, torch.ones(7, dtype=torch.bool, device=device)):
        for name, values in clip_and_sum(
            checked, where, x, y, ClippingSettings(0.3), present=present
        ).gradients.items():
            torch.testing.assert_close(values, truth[name], rtol=1e-4, atol=1e-6)


def forms_of(values):
    """Gradients whose first number is this value, and all others zero."""
    records, one = len(values), torch.ones_like(values)[:, None, None, None]
    g, shape = values.float()[:, None, None, None], torch.Size((1, 1))
    outer, half = Outer(one.float(), g, shape), Outer(one.float() / 2, g, shape)
    owners = torch.arange(records, device=g.device)
    rows = SparseRows(owners, torch.zeros_like(owners), g[:, 0, 0] / 2, records, shape)
    two = Outer(one.float().expand(-1, 1, 2, 1) / 2, g.expand(-1, 1, 2, 1), shape)
    zeros = torch.zeros(shape, device=g.device)
    return {
        "dense": Dense(g[:, 0, 0]),
        "outer": outer,
        "positions": two,
        "deferred": Deferred(two.inputs, two.output_gradients, shape, values.square()),
        "reordered": Reordered(outer, (1, 0), shape),
        "tied": Tied(half, rows),
        "joint, one draw": Joint((outer,), (zeros,)),
        "joint, two draws": Joint((outer, outer), (zeros,) * 2),
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_part_of_many_records_is_summed_in_float64_and_stays_so(device, monkeypatch, way):
    """Values whose sum is exact in float64, and no number of float32; also where it lies in a place of its own."""
    values = that_round_both_ways(64, 64).to(device)
    assert float(values.sum()) != float(values.sum().float())
    use(monkeypatch, way)
    for name, form in forms_of(values).items():
        found = form.finite().weighted_sum(torch.ones_like(values), Destination(None, torch.float64, 20_000))
        assert found.dtype == torch.float64
        assert float(found.sum()) == float(values.sum()), name
        place = torch.empty(*found.shape, 2, dtype=torch.float64, device=device)[..., 0]
        assert torch.equal(form.weighted_sum(torch.ones_like(values), Destination(place, None, 20_000)), found), name
        assert form.weighted_sum(torch.ones_like(values)).dtype == torch.float32


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["dense", "outer"])
def test_a_record_moves_the_sum_of_parts_by_what_it_contributes(device, monkeypatch, name, way):
    """The first parts of a batch of 20,000 records: more would take the interpreter long."""
    parts = case(name, values := that_round_both_ways(2 * 64, 64), device)
    use(monkeypatch, way)
    assert moved(*parts, sums=Sums(largest_batch=20_000), micro_batch_size=64) == float(values[0])


def test_small_products_of_records_that_may_cancel_take_several_launches(device, monkeypatch):
    """As many as rounding allows: of 64 records with 300 positions in a batch of ten million."""
    use(monkeypatch, "one launch")
    launched, real = [], fused.weighted_product
    monkeypatch.setattr(fused, "weighted_product", lambda *given: (launched.append(len(given[0])), real(*given)))
    a = torch.randint(-99, 99, (64, 1, 300, 3), device=device).float()
    g = torch.randint(-99, 99, (64, 1, 300, 2), device=device).float()
    a[5], factors = math.nan, torch.ones(64, dtype=torch.float64, device=device)
    factors[5] = 0.0
    outer = Outer(a, g, torch.Size((2, 3)))
    whole = outer.finite().weighted_sum(factors, Destination(dtype=torch.float64))
    assert launched == [64]
    assert torch.equal(outer.finite().weighted_sum(factors, Destination(None, torch.float64, 10**7)), whole)
    assert max(launched[1:]) < 32
    assert sum(launched[1:]) == 64


@pytest.mark.parametrize("bad", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow), 1e30])
@pytest.mark.parametrize("present", [True, False])
def test_no_record_moves_the_sum_by_more_than_the_clip_norm(device, used_everywhere, bad, present):
    torch.manual_seed(0)
    model, shape = cnn()
    x, y = numbers(device, 6, *shape), torch.arange(6, device=device) % 3
    checked = check_model(model.to(device), dpbnn.Categorical(), x, y)
    weights = checked.objective.model_weights()
    mask = torch.ones(6, dtype=torch.bool, device=device) if present else None

    def flat(x):
        gradients = clip_and_sum(checked, weights, x, y, ClippingSettings(0.3), present=mask).gradients
        return torch.cat([values.flatten().double() for values in gradients.values()])

    before = flat(x)
    x[2] *= 100
    assert (flat(x) - before).norm() <= 2 * 0.3
    x[2, 0, 0] = bad
    assert (flat(x) - before).norm() <= 0.3 * (1 + 1e-6) if not math.isfinite(bad) else 2 * 0.3


@pytest.mark.parametrize(("width", "clip_norm"), [(64, 1.37e-5), (64, 5.7e-9), (64, 1e-2), (1024, 1.0)])
def test_a_record_whose_clipped_gradient_is_too_small_for_float32_does_not_get_through(
    device, used_everywhere, width, clip_norm
):
    """Huge inputs, tiny output gradients: what is left after clipping rounds to another number altogether."""
    model = nn.Linear(width, width, bias=False).to(device)
    nn.init.zeros_(model.weight)
    x = torch.full((1, width), 3e38, device=device)
    for scale in (2.0**-120, 2.0**-110, 1e-36):
        y = torch.full((1, width), scale, device=device)
        likelihood = dpbnn.HomoscedasticGaussian(noise_std=1.0)
        clipped = dpbnn.clipped_gradient_sum(model, likelihood, x, y, clip_norm).gradients["weight"]
        assert float(clipped.double().norm()) <= clip_norm


def test_nothing_of_a_batch_is_left_behind(device, used_everywhere):
    """Not even until the garbage collector comes: gradients of a large model would fill a device."""
    model, shape = cnn()
    x, y = numbers(device, 6, *shape), torch.arange(6, device=device) % 3
    gc.collect()
    gc.disable()
    try:
        checked = check_model(model.to(device), dpbnn.Categorical(), x, y)
        clip_and_sum(checked, checked.objective.model_weights(), x, y, ClippingSettings(0.3))
        assert not [one for one in gc.get_objects() if issubclass(type(one), Trace)]
    finally:
        gc.enable()
