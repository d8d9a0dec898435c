"""Transformers as people write them run on the fast engine, and give the truth."""

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.check.coverage import agrees_with_loop
from dpbnn.clipping.engines import ENGINES, book_keeping
from dpbnn.clipping.engines.layout import Layout, Treatment
from dpbnn.clipping.forms import deferred
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


@pytest.mark.parametrize("records_at_a_time", [1, 2, 100])
def test_a_layer_whose_gradients_are_too_large_to_keep_gives_the_truth(records_at_a_time, monkeypatch):
    monkeypatch.setattr(deferred, "SMALL", 0)
    monkeypatch.setattr(deferred, "AT_A_TIME", records_at_a_time * WIDTH * 16)
    model = Pictures(repeated)
    x, y = batch(model, 5)
    x = x[:, 1:]  # so few positions that inputs and output gradients take less
    x[1, 0, 0] = math.inf
    checked = check_model(model, Categorical(), x, y)
    found = ENGINES[checked.engine](checked.objective, checked.objective.model_weights(), x, y)
    assert isinstance(found["block.up.weight"], deferred.Deferred)
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


@pytest.mark.parametrize("left", [0.0, 1e-5, 1e-2, 1.0])
def test_what_was_deferred_never_counts_less_than_what_is_summed(left):
    inputs, gradients = 100 * torch.randn(6, 1, 20, 4), torch.randn(6, 1, 20, 5)
    inputs[:, :, 10:], gradients[:, :, 10:] = (left - 1) * inputs[:, :, :10], gradients[:, :, :10]
    kept = deferred.Deferred.of(inputs[:, 0], gradients[:, 0], torch.Size((5, 4)))
    true = (gradients.double().mT @ inputs.double()).flatten(1).norm(dim=1)
    norms = kept.squared_norms().sqrt()
    assert (norms >= true * (1 - 5e-5)).all()
    for record in range(6):
        factors = torch.zeros(6).index_fill(0, torch.tensor(record), 1.0) / norms.float()
        assert float(kept.weighted_sum(factors).double().norm()) <= 1 + 1e-4
    if left == 1.0:
        assert (norms <= true * (1 + 5e-5)).all()


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


class Hidden(torch.autograd.Function):
    """Uses a weight where no operation is seen."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(dim=tuple(range(g.dim() - 1)))


class HiddenUse(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        return Hidden.apply(self.norm(self.layer(x)), self.norm.weight).sum(1)[:, :CLASSES]


@pytest.mark.guarantees("A weight whose use is not accounted for is noticed and never dropped.")
@pytest.mark.filterwarnings("ignore:Neither book-keeping:dpbnn.errors.DpbnnWarning")
def test_a_use_that_nobody_sees_is_found_by_the_loop():
    model = HiddenUse()
    x, y = batch(model, 4)
    assert check_model(model, Categorical(), x, y).engine != "book_keeping"
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


@pytest.mark.parametrize(
    ("layout", "is_right"),
    [
        (Layout(0, "blocks", 3), True),
        (Layout(0, "interleaved", 3), False),
        (Layout(0, "blocks", 2), False),
        (Layout(0), False),
        (Layout(None), False),
    ],
)
def test_only_the_right_layout_agrees_with_the_loop(layout, is_right):
    model = nn.Sequential(
        nn.Flatten(0, 1), nn.Linear(4, WIDTH), nn.Unflatten(0, (-1, 3)), nn.Flatten(), nn.Linear(3 * WIDTH, CLASSES)
    )
    x, y = torch.randn(3, 3, 4), torch.randint(CLASSES, (3,))
    objective = check_model(model, Categorical(), x, y).objective
    assert objective.treatment == Treatment({"1": Layout(0, "blocks", 3)})
    assert agrees_with_loop(objective.treated(Treatment({"1": layout})), objective.model_weights(), x, y) == is_right


class Packed(nn.Module):
    """Only the places of a padded sequence that hold something are computed, all records' together."""

    def __init__(self, holds_something):
        super().__init__()
        self.holds_something = holds_something
        self.inner, self.outer = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        mask = self.holds_something(x)
        hidden = torch.relu(self.inner(x[mask]))
        return self.outer(x.new_zeros(*mask.shape, WIDTH).masked_scatter(mask[..., None], hidden).sum(dim=1))


class SortedByLength(nn.Module):
    """Records are sorted inside, and put back."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        order = (x != 0).flatten(1).sum(dim=1).argsort()
        hidden = torch.tanh(self.inner(x[order])).reshape(len(x), -1, WIDTH).sum(dim=1)
        return self.outer(hidden[order.argsort()])


@pytest.mark.filterwarnings("ignore:Neither book-keeping nor vmap")
@pytest.mark.parametrize(
    "model",
    [
        Packed(lambda x: (x != 0).any(dim=-1)),
        Packed(lambda x: x.abs().sum(dim=-1) < 1e3),  # the synthetic records never show it
    ],
    ids=["padding", "hidden from the trial"],
)
def test_rows_that_values_move_about_are_not_given_to_the_wrong_record(model):
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, 4), torch.randint(CLASSES, (6,))
    for record, length in enumerate((1, 3, 2, 2, 3, 1)):  # two places each on average, as blocks of two would have
        x[record, length:] = 1e4 if model.holds_something(torch.zeros(1, 1, 4)).any() else 0.0
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


@pytest.mark.parametrize("shape", [(4,), (4, 4)])
def test_a_model_that_sorts_records_inside_is_not_left_to_book_keeping(shape):
    """Its layers see records in different orders, which synthetic records may not show."""
    torch.manual_seed(0)
    x, y = torch.randn(6, *shape), torch.randint(CLASSES, (6,))
    for record, length in enumerate((1, 3, 2, 2, 3, 1)):
        x[record, length:] = 0.0
    model = SortedByLength()
    assert check_model(model, Categorical(), x, y).engine != "book_keeping"
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


class Gated(nn.Module):
    """Rows of all records of a position together, behind a gate that synthetic records do not open."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x):
        hidden = self.inner(x.transpose(0, 1).reshape(-1, 4)).view(x.shape[1], len(x), -1)
        gate = (x.abs().amax(dim=(1, 2)) > 50).float()
        return (hidden * gate[:, None]).sum(dim=0) + self.outer(x[:, 0])


def test_a_layer_of_which_the_trial_saw_no_gradient_is_not_left_to_book_keeping():
    torch.manual_seed(0)
    model, x, y = Gated(), 100 * torch.randn(6, 3, 4), torch.randint(CLASSES, (6,))
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


def test_a_layer_that_is_used_again_waits_for_the_branches_before(monkeypatch):
    """A stand-in for the branches of a recording: who adds to what another branch has made must have waited for it."""
    branches, joined, made_in, now = iter(range(1, 100)), set(), {}, [0]

    @contextmanager
    def beside():
        before, now[0] = now[0], next(branches)
        yield now[0]
        now[0] = before

    original = book_keeping.Recording._add

    def add(self, name, values):
        if name in self.found:
            assert made_in[name] == 0 or made_in[name] in joined
        original(self, name, values)
        made_in[name] = now[0]

    monkeypatch.setattr(book_keeping, "beside", beside)
    monkeypatch.setattr(book_keeping, "join", lambda *own: joined.update(own))
    monkeypatch.setattr(book_keeping.Recording, "_add", add)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer, nn.Linear(4, CLASSES))
    clipped_gradient_sum(model, Categorical(), torch.randn(5, 4), torch.randint(CLASSES, (5,)), 0.2)
    assert joined
