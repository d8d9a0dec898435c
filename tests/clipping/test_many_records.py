"""Batches in many parts: no sum on the way to the noise is stored in float32, whatever form gradients have.

Every sum here is exact in float64, and so the difference that a record makes must be its contribution to the last bit.
"""

import math

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.audit.rounding import that_round_both_ways
from dpbnn.clipping import ClippingSettings, Sums, check_model, clip_and_sum, gradient
from dpbnn.clipping.forms import deferred
from dpbnn.clipping.forms.deferred import Deferred
from dpbnn.clipping.forms.joint import Joint
from dpbnn.clipping.forms.per_record import Dense, Outer, Reordered, SparseRows
from dpbnn.clipping.forms.tied import Tied
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.types import Draws

LIKELIHOOD = dpbnn.HomoscedasticGaussian(noise_std=1.0)
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]
COUNTS = [20_000, 65_536, pytest.param(262_144, marks=pytest.mark.slow)]


class SharedTable(nn.Module):
    """Looked up in one half, multiplied with in the other; both halves of the gradient are in its first number."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(2, 1), nn.Linear(1, 2, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        looked_up = self.table(torch.zeros_like(x, dtype=torch.long))[:, 0] * x / 2
        return looked_up + self.head(x / 2)[:, :1]


class OnlyBias(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        self.weight.requires_grad_(False)


def flat(*layers):
    return nn.Sequential(*layers, nn.Flatten())


def at_zero(draws):
    """All draws at zero, where a gradient is minus the target; nothing in the spread."""
    return lambda weights: Draws((weights,) * draws, (weights,) * draws)


FORMS = {
    "dense": (OnlyBias, (1,), Dense),
    "outer": (lambda: nn.Linear(1, 1, bias=False), (1,), Outer),
    "outer over positions": (lambda: flat(nn.Linear(8, 8, bias=False)), (2, 8), Outer),
    "deferred": (lambda: flat(nn.Linear(8, 8, bias=False)), (3, 8), Deferred),
    "rows": (lambda: flat(nn.Embedding(2, 1)), (), SparseRows),
    "reordered products": (lambda: flat(nn.Conv1d(1, 1, 1, bias=False)), (1, 1), Reordered),
    "reordered and written out": (lambda: flat(nn.Conv1d(1, 1, 2, bias=False)), (1, 3), Reordered),
    "tied": (SharedTable, (1,), Tied),
    "joint, one draw": (lambda: nn.Linear(1, 1, bias=False), (1,), Joint),
    "joint, two draws": (lambda: nn.Linear(1, 1, bias=False), (1,), Joint),
}
WHERE = {"joint, one draw": at_zero(1), "joint, two draws": at_zero(2)}


def case(name, values, device="cpu"):
    """A checked model at zero, and records of which each has one of the values as its gradient, in the first number."""
    make, shape, _ = FORMS[name]
    model = make().to(device)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    if name == "rows":
        x = torch.zeros(len(values), 1, dtype=torch.long)
    else:
        x = torch.zeros(len(values), *shape)
        x.view(len(values), -1)[:, 0] = 1
    x = x.to(device)
    y = torch.zeros(len(values), model(x[:1]).shape[1])
    y[:, 0] = -values
    assert torch.equal(-y[:, 0].double(), values)
    checked = check_model(model, LIKELIHOOD, x, y.to(device))
    return checked, WHERE.get(name, lambda weights: weights)(checked.objective.model_weights()), x, y.to(device)


def moved(checked, where, x, y, micro_batch_size=None, **how):
    """How far the first record moves the sum, in all numbers together."""
    settings = ClippingSettings(1.0, micro_batch_size=micro_batch_size, in_float64=True)
    sums = [clip_and_sum(checked, where, *part, settings, **how).gradients for part in ((x, y), (x[1:], y[1:]))]
    assert all(values.dtype == torch.float64 for values in sums[0].values())
    return sum(float((sums[0][name] - sums[1][name]).abs().sum()) for name in sums[0])


@pytest.fixture
def forms_seen(monkeypatch):
    """The forms whose sums were taken; a linear layer on positions waits, however little there is of it."""
    seen, squares = set(), gradient._squares
    monkeypatch.setattr(deferred, "SMALL", 0)
    monkeypatch.setattr(deferred, "MOST_ON_CUDA", 0)

    def noted(values):
        seen.add(type(values))
        return squares(values)

    monkeypatch.setattr(gradient, "_squares", noted)
    return seen


@pytest.mark.parametrize("part", [64, 512, LARGEST_PART])
@pytest.mark.parametrize("count", [20_000, 65_536, 262_144])
def test_stored_in_float32_the_sums_of_parts_would_have_moved(count, part):
    """The cases are hard enough to catch the mistake: from 65,536 records on it takes most of the room for rounding."""
    values = that_round_both_ways(count, part)
    stored = [sum(some.sum().float().double() for some in own.split(part)) for own in (values, values[1:])]
    excess = float(stored[0] - stored[1] - values[0])
    assert excess > 0.7 * count * 2.0**-24


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", FORMS)
def test_a_record_moves_the_sum_by_what_it_contributes_in_every_form(name, count, device, forms_seen):
    values = that_round_both_ways(count)
    assert moved(*case(name, values, device)) == float(values[0])
    if device == "cpu" or name != "outer over positions":  # which a GPU writes out, or defers
        assert FORMS[name][2] in forms_seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", COUNTS)
def test_a_record_moves_the_sum_by_what_it_contributes_by_vmap(count, device):
    checked, *rest = case("outer", values := that_round_both_ways(count), device)
    assert moved(type(checked)(**vars(checked) | {"engine": "vmap"}), *rest) == float(values[0])


@pytest.mark.slow
def test_a_record_moves_the_sum_by_what_it_contributes_one_by_one():
    checked, *rest = case("outer", values := that_round_both_ways(20_000))
    assert moved(type(checked)(**vars(checked) | {"engine": "loop"}), *rest) == float(values[0])


@pytest.mark.parametrize("name", ["dense", "outer", "rows", "joint, two draws"])
@pytest.mark.parametrize(
    ("count", "size"),
    [(20_000, 64), (65_536, 512), pytest.param(262_144, 512, marks=pytest.mark.slow)],
)
def test_a_record_moves_the_sum_by_what_it_contributes_in_micro_batches(name, count, size):
    values = that_round_both_ways(count, size)
    assert moved(*case(name, values), micro_batch_size=size) == float(values[0])


@pytest.mark.parametrize("name", FORMS)
def test_a_batch_that_may_be_large_is_not_rounded_when_it_is_small(name):
    """The noise of such a run is added in float64, also where one part is all of the batch."""
    values = that_round_both_ways(LARGEST_PART)
    checked, where, x, y = case(name, values)
    (sums,) = clip_and_sum(checked, where, x, y, ClippingSettings(1.0, in_float64=True)).gradients.values()
    assert float(sums.abs().sum()) == float(values.sum())
    into = {name: torch.full_like(sums, math.nan) for name in checked.objective.model_weights()}
    (again,) = clip_and_sum(
        checked, where, x, y, ClippingSettings(1.0, in_float64=True), sums=Sums(into)
    ).gradients.values()
    assert again is next(iter(into.values()))
    assert torch.equal(again, sums)


@pytest.mark.parametrize("name", FORMS)
def test_parts_are_added_onto_the_sums_of_those_before(name):
    values = that_round_both_ways(2 * 512, 512)
    checked, where, x, y = case(name, values)
    onto = {
        key: v.double()
        for key, v in clip_and_sum(checked, where, x[:0], y[:0], ClippingSettings(1.0)).gradients.items()
    }
    for part in (slice(0, 512), slice(512, 1024)):
        found = clip_and_sum(
            checked, where, x[part], y[part], ClippingSettings(1.0), sums=Sums(onto, True, 10_000)
        ).gradients
        assert all(found[key] is onto[key] for key in onto)
    assert sum(float(total.abs().sum()) for total in onto.values()) == float(values.sum())


def test_a_batch_of_few_records_in_parts_is_stored_in_float32_once():
    """Each part's sum, in float32, would carry the whole over half of the last bit."""
    values = that_round_both_ways(LARGEST_PART, 512)
    last_bit = 2.0**-12
    values[5] += last_bit / 2 - 2.0**-16 - values.sum() % last_bit
    stored = sum(some.sum().float().double() for some in values.split(512))
    assert stored.float() != values.sum().float()
    checked, where, x, y = case("outer", values)
    (found,) = clip_and_sum(checked, where, x, y, ClippingSettings(1.0, micro_batch_size=512)).gradients.values()
    assert found.dtype == torch.float32
    assert float(found) == float(values.sum().float())


def fit_large(batch_size, method, micro_batch_size=None):
    """Layers that are wide for their 20 positions, whose products are not written out for each record."""
    model = nn.Sequential(nn.Linear(128, 128), nn.Flatten(), nn.Linear(2560, 1))
    model[2].requires_grad_(False)
    plan = dpbnn.PrivacyPlan(10 * batch_size, batch_size, 1, 1.0, 1.0, 1e-5)
    execution = dpbnn.Execution(micro_batch_size=micro_batch_size)
    how = {"plan": plan, "likelihood": LIKELIHOOD, "execution": execution, "progress": False}
    return dpbnn.fit(model, torch.zeros(3, 20, 128), torch.zeros(3, 1), method=method, **how)


@pytest.mark.parametrize(
    ("method", "batch_size", "micro_batch_size", "cure"),
    [
        (dpbnn.SGD(0.1), 200_000_000, None, "with 20 positions each; lower the batch size"),
        (dpbnn.SGD(0.1), 6_000_000, 1, "parts; raise micro_batch_size"),
        (dpbnn.BBP(0.1, form="joint", num_draws=2), 200_000_000, None, "parts; raise micro_batch_size"),
    ],
)
def test_a_batch_that_could_not_be_added_up_exactly_is_refused_before_anything_is_spent(
    method, batch_size, micro_batch_size, cure
):
    """By the plan alone: also with a few records, whose batches would all be small."""
    with dpbnn.BudgetAccountant(10.0, 1e-4) as budget, pytest.raises(dpbnn.DpbnnError, match=cure):
        fit_large(batch_size, method, micro_batch_size)
    assert budget.spent() == (0.0, 0.0)
    fit_large(40_000, method)


def test_whether_a_batch_is_refused_follows_from_the_form_of_a_whole_part():
    """One record's products are written out; those of many are kept, with all their positions."""
    model = nn.Sequential(nn.Linear(128, 128), nn.Flatten(), nn.Linear(128 * 40, 1))
    model[2].requires_grad_(False)
    plan = dpbnn.PrivacyPlan(10**9, 10**8, 1, 1.0, 1.0, 1e-5)
    how = {"method": dpbnn.SGD(0.1), "plan": plan, "likelihood": LIKELIHOOD, "progress": False}
    with pytest.raises(dpbnn.DpbnnError, match="with 40 positions each; lower the batch size"):
        dpbnn.fit(model, torch.zeros(3, 40, 128), torch.zeros(3, 1), **how)


@pytest.mark.parametrize("device", DEVICES)
def test_the_type_of_the_sums_follows_from_the_plan_and_not_from_the_number_of_records(device):
    """Of a plan with batches of at most 4096 records, there may be one more: the sum is float32, and exact enough."""
    values = torch.full((3 * LARGEST_PART,), 0.75, dtype=torch.float64)
    checked, where, x, y = case("outer", values, device)
    found = []
    for count in (LARGEST_PART, LARGEST_PART + 1, 3 * LARGEST_PART - 1, 3 * LARGEST_PART):
        (total,) = clip_and_sum(checked, where, x[:count], y[:count], ClippingSettings(1.0)).gradients.values()
        assert total.dtype == torch.float32
        found.append(float(total))
    assert found[0] == 0.75 * LARGEST_PART
    assert found[1] == found[0] + 0.75
    assert found[2] == found[3] == LARGEST_PART, "no sum is longer than float32 can hold exactly enough"
