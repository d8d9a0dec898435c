"""Rounding of sums: one record more may round all others differently, and must not move the sum by more than C."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.audit.rounding import that_round_both_ways
from dpbnn.clipping import clipped_gradient_sum, summation
from dpbnn.clipping.forms import deferred
from dpbnn.clipping.forms.joint import Joint
from dpbnn.clipping.forms.per_record import (
    LONGEST_FLOAT32_SUM,
    ROUNDING_SHARE,
    Dense,
    Destination,
    Outer,
    SparseRows,
    least_of_terms,
)
from dpbnn.clipping.forms.tied import Tied
from dpbnn.clipping.gradient import ROUNDING_ROOM
from dpbnn.clipping.summation import LARGEST_PART

LIKELIHOOD = dpbnn.HomoscedasticGaussian(noise_std=1.0)


def over_a_power_of_two(n, d=1, p=1):
    """Records in the middle of which one lifts the sum over a power of two; those after it then round otherwise."""
    big = 2 ** (int(math.log2(n)) - 1)
    x, y = torch.zeros(n, d), torch.zeros(n, p)
    x[:, 0] = 1
    y[:big, 0], y[big, 0] = -1.0, -1.0
    y[big + 1 :, 0] = 0.3 * big * 2.0**-23
    return x, y, torch.arange(n) != big


def moved(x, y, keep, **options):
    model = nn.Linear(x.shape[1], y.shape[1], bias=False)
    nn.init.zeros_(model.weight)
    both = [
        clipped_gradient_sum(model, LIKELIHOOD, *part, clip_norm=1.0, **options).gradients["weight"].double()
        for part in ((x, y), (x[keep], y[keep]))
    ]
    return float((both[0] - both[1]).norm())


@pytest.mark.parametrize(("d", "p"), [(1, 1), (8, 8)])
@pytest.mark.parametrize(
    ("n", "micro_batch_size"), [(64, None), (300, None), (300, 1), (1000, 100), (4096, None), (4096, 20), (5000, None)]
)
def test_a_record_moves_the_sum_by_at_most_the_clip_norm_however_it_rounds(n, d, p, micro_batch_size):
    assert 0.99 <= moved(*over_a_power_of_two(n, d, p), micro_batch_size=micro_batch_size) <= 1.0


def test_a_float32_sum_in_a_row_would_have_been_moved_by_more():
    """The case is hard enough to catch the mistake."""
    _, y, keep = over_a_power_of_two(4096)
    values = -y[:, 0].numpy()  # what the records contribute
    sums = [np.add.accumulate(part, dtype=np.float32)[-1] for part in (values, values[keep])]
    assert sums[0] - sums[1] > 1.1


@pytest.mark.guarantees("Rounding of the sum stays within its share of the clip norm (`dpbnn.clipping.summation`).")
@pytest.mark.parametrize("largest_batch", [10, 259, 300, 512, 2000, 60_000])
def test_sums_are_as_close_to_the_truth_as_promised(largest_batch):
    """Even if all records were as long as they may be: n u C / 2 for each that is added up in a row."""
    n = min(largest_batch, 1500)
    torch.manual_seed(0)
    factors = torch.rand(n).double()
    factors[3] = 0.0
    a, g = torch.rand(n, 1, 1, 3) + 0.5, torch.rand(n, 1, 1, 2) + 0.5
    outer, rows = Outer(a, g, torch.Size((2, 3))), torch.randint(4, (n,))
    values = torch.rand(n, 5)
    forms = {
        "outer": (outer, torch.einsum("i,ip,id->pd", factors, g[:, 0, 0].double(), a[:, 0, 0].double())),
        "dense": (Dense(values), torch.tensordot(factors, values.double(), dims=1)),
        "rows": (
            SparseRows(torch.arange(n), rows, values, n, torch.Size((4, 5))),
            torch.zeros(4, 5).double().index_add_(0, rows, factors[:, None] * values.double()),
        ),
    }
    lengths = {
        "outer": (a.double().norm(dim=3) * g.double().norm(dim=3)).flatten(),
        "dense": values.double().norm(dim=1),
        "rows": values.double().norm(dim=1),
    }
    for name, (form, truth) in forms.items():
        longest = float((factors * lengths[name]).max())
        off = float((form.weighted_sum(factors, Destination(largest_batch=largest_batch)).double() - truth).norm())
        assert off <= (summation.SHARE / 2 + 2**-24 * n) * longest, name


@pytest.mark.parametrize("n", [10, 300])
def test_products_that_cancel_over_positions_leave_nothing_behind(n):
    """Each is a thousand times what is left of it: in float32 the others' rounding would be seen."""
    torch.manual_seed(0)
    a, g = torch.randn(n, 1, 8, 6) * 1e3, torch.randn(n, 1, 8, 6)
    a[:, :, 1::2], g[:, :, 1::2] = a[:, :, ::2] + 1e-3, -g[:, :, ::2]
    truth = torch.einsum("igtp,igtd->pd", g.double(), a.double())
    total = Outer(a, g, torch.Size((6, 6))).weighted_sum(torch.ones(n).double())
    assert float((total.double() - truth).norm()) <= 1e-6 * float(truth.norm())


@pytest.mark.parametrize("positions", [2, 49, 100, 101, 256])
@pytest.mark.parametrize("left", [1e-6, 0.01, 0.02, 0.04])
def test_a_norm_that_is_measured_in_float32_is_too_short_by_no_more_than_its_share(positions, left):
    """All terms but the first are too small to be added to it in float32, and the last takes most of it away."""
    a, g = torch.ones(2, positions, 8), torch.full((2, positions, 8), 0.99 * 2.0**-24)
    g[:, 0], g[:, -1] = 1.0, left - 1.0
    true = torch.einsum("itp,itd->ipd", g.double(), a.double()).flatten(1).norm(dim=1)
    counted = deferred.Deferred.of(a, g, torch.Size((8, 8))).squared_norms().sqrt()
    assert torch.all(true <= counted * (1 + deferred.PRODUCT_SHARE))
    assert torch.all(counted <= torch.maximum(1.001 * true, 0.05 * a.norm(dim=2).mean() * g.norm(dim=2).sum(dim=1)))


def test_the_room_for_rounding_holds_all_shares():
    """What a record's own norm takes is half of what rounds its square; docs/clipping.md shows the split."""
    own = deferred.PRODUCT_SHARE + LONGEST_FLOAT32_SUM * 2**-25
    assert ROUNDING_SHARE < deferred.PRODUCT_SHARE, "products whose norms are taken in float64 need less"
    stored = 2 * LARGEST_PART * 2**-24
    assert own >= 1e-4
    assert summation.SHARE + own + stored <= ROUNDING_ROOM
    assert 0.75 < summation.SHARE / ROUNDING_ROOM < 0.85, "most of it is the sums', as the page says"


def test_a_record_moves_the_sum_of_very_many_by_at_most_the_clip_norm_however_parts_round():
    """Here by 1.0095 clip norms, if the sum of each part were stored in float32."""
    y = -that_round_both_ways(245_760).float()[:, None]
    assert 0.99 <= moved(torch.ones_like(y), y, torch.arange(len(y)) > 0) <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terms_that_cancel_are_at_most_so_many_clip_norms(dtype):
    assert 1 / least_of_terms(dtype) <= summation.MOST_CANCELLING


@pytest.mark.parametrize("largest_batch", [1, 4096, 20_000, 262_144, 10**7])
@pytest.mark.parametrize("terms", [1, 2, 49, 300])
@pytest.mark.parametrize("records", [1, 500, 4096])
def test_terms_are_added_so_few_at_a_time_that_rounding_stays_within_its_share(records, terms, largest_batch):
    largest_batch = max(records, largest_batch)
    parts = summation.slices(records, terms, largest_batch)
    assert [row for part in parts for row in range(records)[part]] == list(range(records))
    largest = max(len(range(records)[part]) for part in parts)
    ratio = 2 * summation.MOST_CANCELLING if terms > 1 else 0
    assert largest_batch * terms * (records + ratio * largest) * 2.0**-53 <= summation.SHARE / 2
    if largest_batch <= 4096:
        assert len(parts) == 1, "batches of one part are added up at once"


def test_what_no_order_could_add_up_well_enough_is_refused():
    with pytest.raises(dpbnn.errors.DpbnnError, match=r"with 2,000 positions each; lower the batch size"):
        summation.refuse_inexact(10**7, 4096, 2000)
    for records, part in ((10**8, 4096), (4 * 10**6, 1)):
        summation.refuse_inexact(records, part, 1)
    for records, part in ((10**9, 4096), (5 * 10**6, 1)):
        with pytest.raises(dpbnn.errors.DpbnnError, match=r"parts; raise micro_batch_size"):
            summation.refuse_inexact(records, part, 1)


def test_no_step_is_refused_whatever_its_batch():
    assert summation.slices(3, 2000, 10**9) == [slice(0, 1), slice(1, 2), slice(2, 3)]


def cancelling(records, positions, d=3, p=2):
    """Products on a coarse grid, which are exact in float64, and cancel but for little."""
    a, g = torch.randint(-99, 99, (records, 1, positions, d)) * 64.0, torch.randint(-99, 99, (records, 1, positions, p))
    a[:, :, 1::2], g = a[:, :, ::2] + 1.0, g.float()
    g[:, :, 1::2] = -g[:, :, ::2]
    return Outer(a, g, torch.Size((p, d)))


@pytest.mark.parametrize("name", ["outer", "outer in float64", "tied", "joint"])
def test_sums_are_the_same_for_any_number_of_records_at_a_time(name, monkeypatch):
    """Factors are powers of two, so that all sums are exact."""
    factors = 2.0 ** -torch.randint(4, (64,)).double()
    outer, first, second = cancelling(64, 300), cancelling(64, 1), cancelling(64, 1)
    owners, values = torch.arange(64).repeat(3), torch.randint(9, (192, 3)).float()
    form, largest_batch = {
        "outer": (outer, 10**7),
        "outer in float64": (Outer(outer.inputs.double(), outer.output_gradients.double(), outer.shape), 10**7),
        "tied": (Tied(outer, SparseRows.merged(owners, torch.randint(2, (192,)), values, 64, outer.shape)), 10**7),
        "joint": (Joint((first, second), (torch.full((2, 3), 0.5), torch.full((2, 3), -2.0))), 4 * 10**8),
    }[name]
    whole = form.weighted_sum(factors, Destination(dtype=torch.float64))
    found, at_a_time = [], summation._at_a_time
    monkeypatch.setattr(summation, "_at_a_time", lambda *given: found.append(at_a_time(*given)) or found[-1])
    assert torch.equal(form.weighted_sum(factors, Destination(None, torch.float64, largest_batch)), whole)
    assert 1 < min(found) < 32, "a few at a time"


@pytest.mark.parametrize("clip_norm", [1e-45, 1e-13, 1e16, 1e39])
def test_a_clip_norm_that_cannot_be_computed_with_is_refused(clip_norm):
    with pytest.raises(dpbnn.errors.DpbnnError, match="clip_norm"):
        clipped_gradient_sum(nn.Linear(2, 2), dpbnn.Categorical(), torch.randn(2, 2), torch.tensor([0, 1]), clip_norm)
