"""Transformers as people write them run on the fast engine, and give the truth."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.models.likelihoods import Categorical
from tests.truth import assert_equals_truth, clipped_sum

WIDTH, LENGTH, CLASSES, WORDS = 8, 5, 3, 11


class Block(nn.Module):
    """A pre-norm block with attention of its own, and a bare scale."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), nn.Dropout(dropout)
        self.scale = nn.Parameter(0.5 * torch.ones(WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.scale * self.out(attended)
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Pictures(nn.Module):
    """A class token and positions as bare parameters; `begin` puts them together with the patches."""

    def __init__(self, begin, positions=(1, LENGTH + 1, WIDTH), token=(1, 1, WIDTH), dropout=0.0):
        super().__init__()
        self.patches = nn.Linear(4, WIDTH)
        self.token, self.positions = nn.Parameter(torch.randn(token)), nn.Parameter(torch.randn(positions))
        self.block, self.head, self.begin = Block(dropout), nn.Linear(WIDTH, CLASSES), begin

    def forward(self, x):
        return self.head(self.block(self.begin(self, self.patches(x)))[:, 0])


def expanded(model, x):
    return torch.cat([model.token.expand(len(x), -1, -1), x], dim=1) + model.positions


def repeated(model, x):
    x = torch.cat([model.token.repeat(len(x), 1, 1), x], dim=1)
    x += model.positions[:, : x.shape[1]]
    return x


def expanded_all(model, x):
    x = torch.cat((model.token.expand_as(x[:, :1]), x), dim=1)
    return model.positions.unsqueeze(0).expand(len(x), -1, -1) + x


def sliced(model, x):
    token = model.token.reshape(1, 1, -1).expand(len(x), 1, WIDTH)
    return torch.cat([token, x], dim=1) * 0.7 + model.positions[: x.shape[1] + 1][None]


def summed_first(model, x):
    first = (model.token + model.positions[:, :1]).expand(x.shape[0], -1, -1)
    return torch.cat([first, x + model.positions[:, 1:]], dim=1)


class Words(nn.Module):
    """Positions from a table that is asked without records; the output layer shares the token table."""

    def __init__(self, positions, tied=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH + 2, WIDTH)
        self.block, self.head = Block(), nn.Linear(WIDTH, WORDS, bias=False)
        self.asked = positions
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        h = self.tokens(tokens) + self.positions(self.asked(tokens.shape[1]))
        return self.head(self.block(h)[:, -1])


class Layers(nn.Module):
    def __init__(self, batch_first, dropout=0.0, **options):
        super().__init__()
        self.batch_first = batch_first
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout, batch_first=batch_first, **options)
        self.first = nn.Linear(4, WIDTH)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.first(x)
        if self.batch_first:
            return self.head(self.layers(x)[:, -1])
        return self.head(self.layers(x.transpose(0, 1))[-1])


MODELS = {
    "token expanded": lambda: Pictures(expanded),
    "token repeated, added in place": lambda: Pictures(repeated),
    "table without a leading dimension": lambda: Pictures(expanded_all, (LENGTH + 1, WIDTH), (WIDTH,)),
    "table sliced": lambda: Pictures(sliced, (LENGTH + 3, WIDTH), (WIDTH,)),
    "parameters added to one another": lambda: Pictures(summed_first),
    "positions asked for": lambda: Words(torch.arange),
    "positions with a leading one": lambda: Words(lambda n: torch.arange(n)[None], tied=False),
    "layers, records first": lambda: Layers(True),
    "layers, sequence first": lambda: Layers(False, norm_first=True),
    "layers without bias": lambda: Layers(False, bias=False),
}


def batch(model, size):
    words = isinstance(model, Words)
    x = torch.randint(WORDS, (size, LENGTH)) if words else torch.randn(size, LENGTH, 4)
    return x, torch.randint(WORDS if words else CLASSES, (size,))


@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_gives_the_truth_on_the_fast_engine(name):
    model = MODELS[name]()
    for size in (0, 1, 2, 5, 6, 8):  # 5 and 6 are also numbers of positions
        x, y = batch(model, size)
        assert check_model(model, Categorical(), x, y).engine == "book_keeping"
        for clip_norm in (0.2, math.inf):
            clipped = clipped_gradient_sum(model, Categorical(), x, y, clip_norm)
            assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, clip_norm))


@pytest.mark.parametrize("make", [lambda: Pictures(expanded, dropout=0.3), lambda: Layers(True, dropout=0.3)])
def test_dropout_does_not_keep_a_transformer_off_the_fast_engine(make):
    model = make()
    assert check_model(model, Categorical(), *batch(model, 2)).engine == "book_keeping"


def test_half_precision_runs_on_the_fast_engine_and_sums_in_float32():
    model = Pictures(expanded)
    x, y = batch(model, 6)
    truth = clipped_sum(model, Categorical(), x, y, 0.2)
    model = model.bfloat16()
    assert check_model(model, Categorical(), x.bfloat16(), y).engine == "book_keeping"
    clipped = clipped_gradient_sum(model, Categorical(), x.bfloat16(), y, 0.2)
    assert all(values.dtype == torch.float32 for values in clipped.gradients.values())
    assert_equals_truth(clipped, truth, tolerance=0.05)


class Latents(nn.Module):
    """As many rows as `repeats` are made of one parameter, which has nothing to do with the records."""

    def __init__(self, repeats):
        super().__init__()
        self.latent, self.weighting = nn.Parameter(torch.randn(1, WIDTH)), nn.Parameter(torch.randn(repeats, 1))
        self.first, self.repeats = nn.Linear(4, WIDTH), repeats

    def forward(self, x):
        rows = self.latent.expand(self.repeats, -1) * self.weighting
        return (self.first(x)[:, None] * rows).tanh().sum(1)[:, :CLASSES]


@pytest.mark.parametrize("repeats", [1, 2, 3, 4, 7])
def test_a_dimension_that_is_as_long_as_the_batch_by_chance_is_not_taken_for_the_records(repeats):
    model = Latents(repeats)
    for size in (1, 2, 3, 4, 7):
        x, y = torch.randn(size, 4), torch.randint(CLASSES, (size,))
        clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
        assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))
