"""The forms of per-record gradients agree with one another, and with what they are short for."""

import pytest
import torch
from torch import nn

from dpbnn.clipping.forms import per_record
from dpbnn.clipping.forms.combine import combine
from dpbnn.clipping.forms.per_record import Dense, Outer, Reordered, SparseRows
from dpbnn.clipping.rules import rule_for

FACTORS = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.25], dtype=torch.float64)
RECORDS = len(FACTORS)


def assert_same(found, values):
    """In norms, in weighted sums, made finite, and written out."""
    assert torch.allclose(found.squared_norms(), values.flatten(1).double().square().sum(dim=1), rtol=1e-5)
    assert torch.allclose(found.weighted_sum(FACTORS), torch.tensordot(FACTORS.to(values), values, 1), atol=1e-4)
    assert torch.allclose(found.dense().values, values, atol=1e-4)
    assert torch.allclose(found.finite().dense().values, values, atol=1e-4)


@pytest.mark.parametrize("positions", [2, 7])
def test_gram_matrices_are_the_same_for_any_number_of_records_at_a_time(positions, monkeypatch):
    outer = Outer(torch.randn(RECORDS, 2, positions, 6), torch.randn(RECORDS, 2, positions, 5), torch.Size((10, 6)))
    whole = outer.squared_norms()
    for numbers in (1, 2 * 2 * positions * (11 + 3 * positions)):
        monkeypatch.setattr(per_record, "FLOAT64_NUMBERS", numbers)
        assert torch.allclose(outer.squared_norms(), whole, rtol=1e-14)
    assert_same(outer, outer.dense().values)


@pytest.mark.parametrize("entries", [0, 1, 40])
def test_entries_of_the_same_record_and_row_are_added_up(entries):
    records, rows = torch.randint(RECORDS, (entries,)), torch.randint(4, (entries,))
    values = torch.randn(entries, 3)
    expected = torch.zeros(RECORDS, 4, 3).index_put_((records, rows), values, accumulate=True)
    merged = SparseRows.merged(records, rows, values, RECORDS, torch.Size((4, 3)))
    assert_same(merged, expected)
    assert_same(combine(merged, merged), 2 * expected)
    pairs = merged.records * 4 + merged.rows
    used = pairs[merged.values.any(dim=1)]
    assert len(used) == len(used.unique())


def test_two_uses_in_the_same_order_stay_products():
    values = [torch.randn(RECORDS, 1, 2, 4) for _ in range(4)]
    outer = [Outer(a, g, torch.Size((4, 2, 2))) for a, g in (values[:2], values[2:])]
    both = combine(*(Reordered(each, (1, 0, 2), torch.Size((2, 4, 2))) for each in outer))
    assert isinstance(both.values, Outer)
    assert_same(both, sum(each.dense().values for each in outer).transpose(1, 2))
    mixed = combine(Reordered(outer[0], (1, 0, 2), torch.Size((2, 4, 2))), Dense(torch.ones(RECORDS, 2, 4, 2)))
    assert_same(mixed, outer[0].dense().values.transpose(1, 2) + 1)


def test_the_norm_of_a_linear_layers_output_gradient_is_taken_once_for_weight_and_bias():
    module, a, g = nn.Linear(6, 4), torch.randn(RECORDS, 6), torch.randn(RECORDS, 4)
    found = rule_for(module).gradients(module, a, g, ("weight", "bias"))
    assert_same(found["weight"], g[:, :, None] * a[:, None])
    assert_same(found["bias"], g)
    assert found["bias"].norms._base is found["weight"].norms[1]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(6, 4), (6,)),
        (lambda: nn.Linear(40, 40), (3, 40)),
        (lambda: nn.Linear(3, 2), (40, 3)),
        (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8)),
        (lambda: nn.Conv2d(12, 20, 3), (12, 4, 4)),
        (lambda: nn.GroupNorm(2, 4), (4, 5)),
        (lambda: nn.LayerNorm(4), (5, 4)),
        (lambda: nn.Embedding(7, 3), (5,)),
    ],
)
def test_norms_and_sums_never_ask_for_a_value(make, shape):
    """Tensors without values raise where a GPU would have to wait for one, and could not be captured."""
    with torch.device("meta"):
        module = make()
        x = torch.zeros(RECORDS, *shape, dtype=torch.long if isinstance(module, nn.Embedding) else torch.float32)
        with torch.no_grad():
            for name, found in (
                rule_for(module).gradients(module, x, torch.zeros_like(module(x)), ("weight", "bias")).items()
            ):
                again = combine(found, found).finite()
                assert again.squared_norms().shape == (RECORDS,)
                assert again.weighted_sum(torch.zeros(RECORDS)).shape == module.get_parameter(name).shape
