"""One record more or less must not move the sum by more than C through the rounding of the others' gradients."""

import math

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping.gradient import ROWS_ALIKE

GAUSSIAN = dpbnn.HomoscedasticGaussian(noise_std=1.0)


def summed(model, x, y, clip_norm=1.0, **how):
    gradients = dpbnn.clipped_gradient_sum(model, GAUSSIAN, x, y, clip_norm, **how).gradients
    return torch.cat([values.flatten().double() for values in gradients.values()])


def on_the_edge(model, count):
    """Huge records whose output is zero but for rounding, which alone decides the sign of their gradient."""
    w = model.weight.detach()[0].double()
    x = 1e4 * torch.randn(count, len(w), dtype=torch.float64)
    return (x - (x @ w)[:, None] * w / (w @ w)).float()


@pytest.mark.parametrize(("width", "micro_batch_size"), [(512, None), (512, 1), (512, 16), (512, 30), (30, 1)])
@pytest.mark.parametrize("n", [2, 4, 5, 8, 16, 17, 33, 64, 257])
def test_the_others_keep_their_last_bits_when_a_record_leaves(n, width, micro_batch_size):
    model = nn.Linear(width, 1, bias=False)
    x, y = on_the_edge(model, n), torch.zeros(n, 1)
    whole = summed(model, x, y, micro_batch_size=micro_batch_size)
    for left in (0, n // 2, n - 1):
        kept = [row for row in range(n) if row != left]
        assert (whole - summed(model, x[kept], y[kept], micro_batch_size=micro_batch_size)).norm() <= 1.0


def test_copies_of_one_record_all_stay_as_they_are():
    model = nn.Linear(512, 1, bias=False)
    for record in on_the_edge(model, 40):
        for n in (4, 8, 16):
            x, y = record.expand(n, -1).contiguous(), torch.zeros(n, 1)
            assert (summed(model, x, y) - summed(model, x[1:], y[1:])).norm() <= 1.0


LAYERS = {
    "one output": (lambda: nn.Linear(512, 1), (512,)),
    "wide": (lambda: nn.Linear(300, 400), (300,)),
    "narrow": (lambda: nn.Linear(32, 3), (32,)),
    "positions": (lambda: nn.Linear(64, 5), (17, 64)),
    "convolution": (lambda: nn.Conv2d(16, 32, 4, 2), (16, 13, 13)),
    "one channel": (lambda: nn.Conv2d(1, 16, 8, 2, 3), (1, 28, 28)),
    "sigmoid": (nn.Sigmoid, (64,)),
    "softmax": (lambda: nn.LogSoftmax(dim=-1), (10,)),
    "layer norm": (lambda: nn.LayerNorm(33), (33,)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_full_matrices_are_treated_alike(name):
    """What padding relies on: a record's output and gradient depend neither on its place nor on how many there are.

    For other widths that does not hold (a row of 30 numbers begins at odd places in memory).
    """
    make, shape = LAYERS[name]
    layer, record, seen = make(), 3 * torch.randn(shape), set()
    for rows in (ROWS_ALIKE, 3 * ROWS_ALIKE, 16 * ROWS_ALIKE):
        for place in (0, 1, rows // 2, rows - 1):
            x = torch.randn(rows, *shape)
            x[place] = record
            output = layer(x.requires_grad_())
            (gradient,) = torch.autograd.grad(output, x, torch.full_like(output, 0.37))
            seen.add((output[place].detach().numpy().tobytes(), gradient[place].numpy().tobytes()))
    assert len(seen) == 1


class Direction(nn.Module):
    """Not a number for a row of zeros."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x / x.norm(dim=1, keepdim=True))


def test_padding_that_is_no_number_contributes_nothing():
    model, x, y = Direction(), torch.randn(5, 4), torch.randn(5, 2)
    one_by_one = sum(summed(model, x[row : row + 1], y[row : row + 1], micro_batch_size=1) for row in range(5))
    torch.testing.assert_close(summed(model, x, y), one_by_one, rtol=1e-5, atol=1e-6)


class SharedTable(nn.Module):
    """A table that is looked up and multiplied with; both gradients of its first number are inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.head.weight = self.table.weight
        nn.init.zeros_(self.table.weight)

    def forward(self, x):
        looked_up = self.table(x[:, :1].nan_to_num().clamp(0, 1).long())[:, 0] * x[:, 1:9]
        return self.head(x[:, 9:].unflatten(1, (2, 8)))[:, :, :1].sum(1) + looked_up.sum(1, keepdim=True)


def test_parts_of_a_tied_weight_that_cancel_are_added_up_without_drift():
    """The first record carries the sum of the rows past a power of two, where all later ones round differently."""
    model, spacing, worst = SharedTable(), 2.0**-10, 0.0

    def moved(rows, products, clip_norm):
        x = torch.zeros(len(rows), 25)
        x[:, 1], x[:, 9] = rows, products
        y = -torch.ones(len(rows), 1)
        return float((summed(model, x, y, clip_norm) - summed(model, x[1:], y[1:], clip_norm)).norm()) / clip_norm

    for k in range(4):
        for up, down in ((61, 63), (63, 61), (65, 61), (61, 65), (67, 63)):
            first = 128.0 + 2 * spacing * k
            drift = torch.tensor([up * spacing, -down * spacing]).repeat(65)
            rows = torch.cat([torch.tensor([first]), torch.full((127,), 128.0), drift])
            clip_norm = 1.005 * 2 * first * 2**-23 / 5e-5 * 1.0000001
            for sign in (-1, 1):
                products = -rows
                products[0] += sign * clip_norm / 1.005 * 0.9999
                worst = max(worst, moved(rows, products, clip_norm))
    assert 0.99 < worst <= 1.0


class Positions(nn.Module):
    """A layer on many positions whose output gradients are inputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return (self.linear(x[..., :2]) * x[..., 2:]).sum(1)[:, :1]


@pytest.mark.parametrize("positions", [200, 256, 257, 1024, 16384])
def test_what_is_measured_is_what_is_summed_over_many_positions(positions):
    """Numbers that float32 loses beside a one, and that are there once the one is taken away again."""
    gradients = torch.full((positions,), 2.0**-24 * (1 - 2**-8))
    gradients[0], gradients[-1], gradients[-2] = 1, -1, 4 * 2**-23 / 5e-5 * 1.05
    x = torch.zeros(1, positions, 4)
    x[0, :, 0], x[0, :, 2] = 1, gradients
    clip_norm = 2.0**-10
    total = summed(Positions().bfloat16(), x.bfloat16(), -torch.ones(1, 1).bfloat16(), clip_norm)
    assert 0.99 < float(total.norm()) / clip_norm <= 1.0
    assert math.isfinite(float(total.norm()))
