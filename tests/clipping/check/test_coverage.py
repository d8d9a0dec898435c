"""Where records and positions lie is found out, and what book-keeping would get wrong is left to another engine."""

import pytest
import torch
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.check.coverage import agrees_with_loop
from dpbnn.clipping.engines.layout import Layout, ModelLayout
from dpbnn.models.likelihoods import Categorical
from tests.truth import assert_equals_truth, clipped_sum

WIDTH, CLASSES = 8, 3


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
    x, y = torch.randn(4, 5, 4), torch.arange(4) % CLASSES
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
    assert objective.layout == ModelLayout({"1": Layout(0, "blocks", 3)})
    tried = objective.with_layout(ModelLayout({"1": layout}))
    assert agrees_with_loop(tried, objective.model_weights(), x, y) == is_right


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


def by_index(values, order):
    return values[order]


def by_array(values, order):
    return values[order.numpy()]


def by_index_copy(values, order):
    return torch.zeros_like(values).index_copy_(0, order.argsort(), values)


def by_index_add(values, order):
    return torch.zeros_like(values).index_add_(0, order.argsort(), values)


def by_gather(values, order):
    index = order.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return torch.gather(input=values, dim=0, index=index)


class SortedByLength(nn.Module):
    """Records are sorted inside, and put back."""

    def __init__(self, select):
        super().__init__()
        self.inner, self.outer, self.select = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES), select

    def forward(self, x):
        order = (x != 0).flatten(1).sum(dim=1).argsort(stable=True)
        hidden = torch.tanh(self.inner(self.select(x, order))).reshape(len(x), -1, WIDTH).sum(dim=1)
        return self.outer(self.select(hidden, order.argsort()))


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


@pytest.mark.filterwarnings("ignore:Neither book-keeping nor vmap")
@pytest.mark.parametrize("shape", [(4,), (4, 4)])
@pytest.mark.parametrize("select", [by_index, by_array, by_index_copy, by_index_add, by_gather])
def test_a_model_that_sorts_records_inside_is_not_left_to_book_keeping(select, shape):
    """Its layers see records in different orders, which synthetic records may not show."""
    torch.manual_seed(0)
    x, y = torch.randn(6, *shape), torch.randint(CLASSES, (6,))
    for record, length in enumerate((1, 3, 2, 2, 3, 1)):
        x[record, length:] = 0.0
    model = SortedByLength(select)
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
