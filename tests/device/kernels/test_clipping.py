"""Each kernel by itself: on a GPU, and elsewhere in Triton's interpreter, which runs the same code on a CPU."""

import math

import pytest
import torch

from dpbnn.clipping import fused
from dpbnn.clipping.gradient import AUTOMATIC_GAMMA, LARGEST_NORM
from tests.clipping.test_fused import LIMIT, numbers
from tests.devices import KERNEL_DEVICES

pytest.importorskip("triton")

pytestmark = pytest.mark.parametrize("device", KERNEL_DEVICES)


@pytest.mark.guarantees("Everything is computed in float64 and rounded once, when it is stored.")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0, 1, 130, 5000, 40_000])
def test_squares_are_those_of_float64(device, length, dtype):
    values = numbers(device, 3, length, dtype=dtype)
    torch.testing.assert_close(fused.squares(values), values.double().square().sum(dim=1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e25, 3e38])
def test_squares_and_products_neither_vanish_nor_overflow(device, size):
    values = torch.full((2, 10), size, device=device)
    square = 10 * float(values[0, 0]) ** 2
    assert fused.squares(values).tolist() == pytest.approx([square] * 2, rel=1e-12)
    ones = torch.ones(2, 3, device=device)
    assert fused.products(values, ones, 0.0).tolist() == pytest.approx([3 * square] * 2, rel=1e-12)


def test_no_rows_have_no_squares(device):
    assert fused.squares(numbers(device, 0, 5)).shape == (0,)


@pytest.mark.parametrize(("d", "p"), [(1, 1), (784, 10), (3, 6000)])
def test_products_are_those_of_norms(device, d, p):
    a, g = numbers(device, 4, d), numbers(device, 4, p)
    truth = a.double().square().sum(dim=1) * g.double().square().sum(dim=1)
    torch.testing.assert_close(fused.products(a, g, 1e-8), truth, rtol=1e-13, atol=0)


def test_a_factor_of_a_product_counts_at_least_so_much(device):
    a, g = torch.full((1, 4), 1e30, device=device), torch.full((1, 4), 1e-30, device=device)
    assert fused.products(a, g, 1e-8).tolist() == pytest.approx([4e60 * 1e-16], rel=1e-6)
    assert fused.products(g, a, 1e-8).tolist() == pytest.approx([4e60 * 1e-16], rel=1e-6)
    assert math.isnan(fused.products(a * math.nan, g, 1e-8).item())


def factors(terms, present=None, limit=LIMIT, offset=None):
    return fused.factors(terms, present, LARGEST_NORM, limit, offset)


@pytest.mark.parametrize("records", [1, 7, 300])
def test_factors_clip_to_the_limit_and_leave_small_records(device, records):
    terms = numbers(device, 3, records, dtype=torch.float64).square() * 2
    norms = terms.sum(dim=0).sqrt()
    torch.testing.assert_close(factors(terms), (LIMIT / norms).clamp(max=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        factors(terms, offset=AUTOMATIC_GAMMA), LIMIT / (norms + AUTOMATIC_GAMMA), rtol=1e-12, atol=0
    )
    assert factors(terms, limit=math.inf).tolist() == [1.0] * records


def test_what_is_absent_not_finite_or_beyond_measure_has_the_factor_zero(device):
    terms = torch.ones(2, 6, dtype=torch.float64, device=device)
    terms[0, 1], terms[1, 2], terms[0, 3], terms[0, 4] = math.nan, math.inf, LARGEST_NORM**2 * 1.01, 0.0
    terms[1, 4] = 0.0
    present = torch.tensor([True] * 5 + [False], device=device)
    for offset in (None, AUTOMATIC_GAMMA):
        for limit in (LIMIT, math.inf):
            found = factors(terms, present, limit, offset)
            assert (found > 0).tolist() == [True, False, False, False, True, False]
            assert found.isfinite().all()


@pytest.mark.parametrize("clip_norm", [1e-9, 0.1, 1 / 3, 1e6])
def test_limits_are_handed_over_in_more_than_float32(device, clip_norm):
    terms = torch.full((1, 2), 1e16, dtype=torch.float64, device=device)
    assert factors(terms, limit=clip_norm).tolist() == pytest.approx([clip_norm / 1e8] * 2, rel=1e-12)


@pytest.mark.guarantees("A record with factor zero contributes exactly zero, whatever it holds.")
@pytest.mark.parametrize(("records", "shape"), [(1, (1,)), (5, (3, 5)), (70, (40,)), (130, ()), (6, (2, 70_000))])
def test_weighted_sums_leave_out_what_has_the_factor_zero(device, records, shape):
    values = numbers(device, records, *shape)
    weights = numbers(device, records, dtype=torch.float64).abs()
    weights[records // 2] = 0.0
    values[records // 2] = math.nan
    truth = torch.tensordot(weights, values.nan_to_num(0.0).double(), dims=1)
    torch.testing.assert_close(fused.weighted_sum(values, weights), truth.float(), rtol=1e-6, atol=1e-30)
    torch.testing.assert_close(fused.weighted_sum(values, weights, None, torch.float64), truth, rtol=1e-13, atol=1e-14)
    for out in (torch.empty(shape, dtype=torch.float64), torch.empty(*shape, 2, dtype=torch.float64)[..., 0]):
        place = out.to(device)
        assert fused.weighted_sum(values, weights, place) is place
        torch.testing.assert_close(place, truth, rtol=1e-13, atol=1e-14)
    scaled = fused.scaled(values, weights, torch.float32)
    assert not scaled[records // 2].any()
    expected = (values.nan_to_num(0.0).double() * weights.view(-1, *[1] * len(shape))).float()
    torch.testing.assert_close(scaled, expected, rtol=1e-6, atol=0)


@pytest.mark.guarantees("A record with factor zero contributes exactly zero, whatever it holds.")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("records", "positions", "d", "p"),
    [(1, 1, 1, 1), (70, 1, 40, 17), (130, 1, 33, 10), (5, 30, 9, 40), (300, 1, 5, 3)],
)
def test_weighted_products_leave_out_what_has_the_factor_zero(device, records, positions, d, p, dtype):
    a, g = numbers(device, records, positions, d, dtype=dtype), numbers(device, records, positions, p, dtype=dtype)
    weights = numbers(device, records, dtype=torch.float64).abs()
    weights[records // 2], a[records // 2], g[records // 2] = 0.0, math.nan, math.inf
    truth = torch.einsum("i,itp,itd->pd", weights, *(v.double().nan_to_num(0.0, 0.0, 0.0) for v in (g, a)))
    for out in (torch.empty(p, d, dtype=dtype, device=device), torch.empty(p, d, dtype=torch.float64, device=device)):
        fused.weighted_product(a, g, weights, out)
        torch.testing.assert_close(
            out, truth.to(out.dtype), rtol=1e-6 if out.dtype == torch.float32 else 1e-12, atol=1e-12
        )


@pytest.mark.guarantees("Everything is computed in float64 and rounded once, when it is stored.")
def test_weighted_products_are_added_up_in_float64(device):
    """Terms that cancel but for one in 10^10, of which float32 would leave nothing."""
    a, g = torch.ones(1, 3, 32, device=device), torch.ones(1, 3, 32, device=device)
    a[0, 0], a[0, 1], a[0, 2] = 1e10, -1e10, 1.0
    out = torch.empty(32, 32, device=device)
    fused.weighted_product(a, g, torch.ones(1, device=device, dtype=torch.float64), out)
    assert torch.equal(out, torch.ones_like(out))


def test_what_is_finite_stays_and_all_else_is_zero(device):
    values = numbers(device, 3, 700)
    values[1, 2:5] = torch.tensor([math.nan, math.inf, -math.inf])
    found = fused.finite(values)
    assert found.dtype == torch.float64
    assert torch.equal(found, values.double().nan_to_num(0.0, 0.0, 0.0))


@pytest.mark.guarantees("The order of additions is fixed: the same numbers give the same result.")
def test_the_same_numbers_give_the_same_result(device):
    a, g, weights = (numbers(device, *shape) for shape in ((70, 3, 40), (70, 3, 20), (70,)))
    wide = numbers(device, 9, 70_000)

    def product(*factors):
        out = torch.empty(20, 40, device=device)
        fused.weighted_product(*factors, out)
        return out

    for compute in (
        lambda: fused.squares(wide),
        lambda: fused.products(a[:, 0], g[:, 0], 1e-8),
        lambda: fused.weighted_sum(a, weights.double()),
        lambda: product(a, g, weights.double()),
    ):
        first = compute()
        assert all(torch.equal(compute(), first) for _ in range(3))
