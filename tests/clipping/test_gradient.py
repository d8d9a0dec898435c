"""Parts of a batch, padded and with secret draws.

The rounding of one record's gradient must not depend on the others, nor the masks of a model that draws although it did
not in its trial on anything but the run's secret key.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpbnn
from dpbnn.clipping import check_model
from dpbnn.clipping.parts import ROWS_ALIKE

GAUSSIAN = dpbnn.HomoscedasticGaussian(noise_std=1.0)
X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


class Configured(nn.Module):
    """Dropout and normalisation by a configuration object, as many libraries have it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.config = SimpleNamespace(dropout=0.0, centred=False)

    def forward(self, x):
        x = x - x.mean(dim=0) if self.config.centred and len(x) > 1 else x
        return self.second(F.dropout(self.first(x).tanh(), self.config.dropout, self.training))


class Late(nn.Module):
    """Dropout that begins after many calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.layer(F.dropout(x, 0.5)) if self.calls[0] > 2000 else self.layer(x)


def fitted(model, seed, steps=6):
    plan = dpbnn.PrivacyPlan(60, 30, steps, clip_norm=1.0, noise_multiplier=0.5, delta=1e-3)
    how = {"method": dpbnn.SGD(0.5), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    torch.manual_seed(seed)
    return dpbnn.fit(model, X, Y, unsafe_seed=3, seed=3, **how).posterior.weights


def test_a_change_of_a_configuration_object_is_tried_anew():
    model = Configured()
    assert not check_model(model, dpbnn.Categorical(), X, Y).draws
    model.config.dropout = 0.5
    assert check_model(model, dpbnn.Categorical(), X, Y).draws
    model.config.dropout, model.config.centred = 0.0, True
    with pytest.raises(dpbnn.DpbnnError, match="mixes records"):
        check_model(model, dpbnn.Categorical(), X, Y)


def test_draws_that_the_trial_did_not_see_come_from_the_secret_key(monkeypatch):
    from dpbnn.clipping.check import compatibility

    model = Configured()
    model.config.dropout = 0.5
    original = compatibility.try_out

    def blind(*given):
        found = original(*given)
        object.__setattr__(found, "draws", False)
        return found

    monkeypatch.setattr(compatibility, "try_out", blind)
    found = [fitted(model, seed) for seed in (1, 2)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_captured_work_is_redirected_whatever_the_trial_saw():
    from dpbnn.clipping.gradient import ClippingSettings, clip_and_sum
    from dpbnn.device.generators import Generators
    from tests.training.steps.test_capture import run_of

    work = run_of(dpbnn.SGD(0.1), {"n": 32, "batch": 16}, "flat", "cpu").work
    masks = Generators.seeded(0)
    weights = work.checked.objective.model_weights()
    x, y = torch.randn(4, 5), torch.zeros(4, dtype=torch.long)
    before = torch.get_rng_state()
    clip_and_sum(work.checked, weights, x, y, ClippingSettings(1.0, no_sync=True), masks=masks)
    assert torch.equal(before, torch.get_rng_state())


class DrawsForOneRecord(nn.Module):
    """What a trial on synthetic records cannot see: a rare value makes it draw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(F.dropout(x, 0.5) if (x == 12345).any() else x)


@pytest.mark.parametrize("her_value", [1.0, 12345.0])
def test_torchs_generator_does_not_tell_whether_a_record_made_the_model_draw(her_value):
    x = X.clone()
    x[7, 2] = her_value
    plan = dpbnn.PrivacyPlan(60, 60, 3, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    how = {"method": dpbnn.SGD(0.5), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    model, before = DrawsForOneRecord(), torch.get_rng_state()
    dpbnn.fit(model, x, Y, **how)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_another_thread_draws_meanwhile_stays_drawn():
    """Its generator is never put back."""
    from dpbnn.clipping.gradient import _secret_draws
    from dpbnn.device.generators import Generators

    before = torch.get_rng_state()
    for drawing in _secret_draws(False, Generators.seeded(0), torch.device("cpu")):
        with drawing:
            torch.rand(3, generator=torch.default_generator)  # which nobody redirects
    torch.rand(3, generator=(expected := torch.Generator()).set_state(before))
    torch.rand(3, generator=expected)
    assert torch.equal(torch.get_rng_state(), expected.get_state())


def test_a_generator_that_another_thread_puts_back_meanwhile_is_not_taken_for_still():
    """Two threads whose models draw: what the first puts back must not hide the second one's draws."""
    from dpbnn.clipping.gradient import _secret_draws
    from dpbnn.device.generators import Generators, default_generators, set_default_generators

    cpu, masks, drawn = torch.device("cpu"), Generators.seeded(0), []

    for drawing in _secret_draws(False, masks, cpu):
        with drawing:
            before = default_generators(cpu)
            drawn.append(torch.rand(3))
            set_default_generators(cpu, before)  # as the other thread would, which began at the same state
    assert masks.num_draws == 1
    assert len(drawn) == 2, "the draws of the first run are known, so it is run again"


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
