"""A table that is looked up and multiplied with: norms without writing the table out."""

import math

import pytest
import torch
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.forms.combine import combine
from dpbnn.clipping.forms.per_record import Dense, Outer, SparseRows
from dpbnn.clipping.forms.tied import Tied
from dpbnn.models.likelihoods import Categorical
from tests.truth import assert_equals_truth, clipped_sum

WORDS, WIDTH, RECORDS, LENGTH = 11, 4, 6, 5
SHAPE = torch.Size((WORDS, WIDTH))


def product(positions, scale=1.0):
    shape = (RECORDS, 1, positions)
    return Outer(scale * torch.randn(*shape, WIDTH), torch.randn(*shape, WORDS), SHAPE)


def rows(values=None):
    owners = torch.arange(RECORDS).repeat_interleave(LENGTH)
    tokens = torch.randint(WORDS, (RECORDS * LENGTH,))
    values = torch.randn(RECORDS * LENGTH, WIDTH) if values is None else values
    return SparseRows.merged(owners, tokens, values, RECORDS, SHAPE)


def all_rows_of(outer, share):
    owners = torch.arange(RECORDS).repeat_interleave(WORDS)
    values = share * outer.dense().values.reshape(-1, WIDTH)
    return SparseRows.merged(owners, torch.arange(WORDS).repeat(RECORDS), values, RECORDS, SHAPE)


def true_squares(tied):
    outer, extra = tied.product, tied.rows.dense().values.double()
    written = outer.output_gradients.double().mT @ outer.inputs.double()
    return (written.reshape(-1, *SHAPE) + extra).square().sum(dim=(1, 2))


@pytest.mark.parametrize("positions", [1, 3])
def test_norms_and_sums_are_those_of_the_table_written_out(positions):
    tied = combine(rows(), product(positions))
    assert isinstance(tied, Tied)
    assert torch.allclose(tied.squared_norms(), true_squares(tied), rtol=1e-6)
    factors = torch.rand(RECORDS)
    assert torch.allclose(tied.weighted_sum(factors), tied.dense().weighted_sum(factors), atol=1e-5)
    assert torch.allclose(tied.finite().dense().values, tied.dense().finite().values)


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("left", [0.0, 1e-6, 1e-4, 1e-2, 0.1, 1.0])
def test_parts_that_cancel_never_count_less_than_what_is_summed(positions, left):
    outer = product(positions, scale=100.0)
    tied = Tied(outer, all_rows_of(outer, left - 1.0))
    norms = tied.squared_norms().sqrt()
    assert (norms >= true_squares(tied).sqrt() * (1 - 1e-6)).all()
    for record in range(RECORDS):
        factors = torch.zeros(RECORDS).index_fill(0, torch.tensor(record), 1.0) / norms.float()
        assert float(tied.weighted_sum(factors).double().norm()) <= 1 + 1e-4
    if left >= 0.1:
        assert (norms <= true_squares(tied).sqrt() * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    "parts",
    [
        [product(1), rows(), product(2)],
        [rows(), product(2), rows()],
        [Dense(torch.randn(RECORDS, *SHAPE)), rows()],
        [rows(), Dense(torch.randn(RECORDS, *SHAPE))],
        [product(1), rows(), Dense(torch.randn(RECORDS, *SHAPE))],
    ],
)
def test_any_forms_can_be_combine(parts):
    whole = parts[0]
    for part in parts[1:]:
        whole = combine(whole, part)
    expected = sum(part.dense().values for part in parts)
    assert torch.allclose(whole.dense().values, expected, atol=1e-5)
    assert torch.allclose(whole.squared_norms(), expected.double().square().sum(dim=(1, 2)), rtol=1e-5)


class LanguageModel(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WORDS, bias=bias)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(torch.tanh(self.hidden(self.embedding(tokens)))[:, -1])


@pytest.mark.parametrize("bias", [True, False])
def test_a_language_model_with_one_table_gives_the_truth_and_writes_nothing_out(bias):
    model = LanguageModel(bias)
    x, y = torch.randint(WORDS, (7, LENGTH)), torch.randint(WORDS, (7,))
    checked = check_model(model, Categorical(), x, y)
    found = ENGINES[checked.engine](checked.objective, checked.objective.model_weights(), x, y)
    assert isinstance(found["embedding.weight"], Tied)
    for clip_norm in (0.2, math.inf):
        clipped = clipped_gradient_sum(model, Categorical(), x, y, clip_norm)
        assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, clip_norm))
