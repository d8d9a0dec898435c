"""The promise itself: one record, whatever its values, moves the sum by at most the clip norm."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpbnn.clipping import clipped_gradient_sum
from dpbnn.clipping.forms.combine import combine
from dpbnn.clipping.forms.deferred import Deferred
from dpbnn.clipping.forms.joint import Joint
from dpbnn.clipping.forms.per_record import Dense, Outer, SparseRows
from dpbnn.clipping.forms.tied import Tied
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from tests.truth import assert_equals_truth, clipped_sum

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3)), (12,)),
    "positions": (lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)), (4, 3)),
    "ghost": (lambda: nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)), (2, 24)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        (1, 7, 7),
    ),
    "vmap": (lambda: nn.Sequential(nn.Linear(12, 9), nn.PReLU(), nn.LayerNorm(9), nn.Linear(9, 3)), (12,)),
}
STRANGE = [0.0, 1.0, -1e4, 1e10, 1e19, -1e30, 3e38, 1e-30, 1e-45, math.nan, math.inf, -math.inf]


def distance(first, second):
    return math.sqrt(sum(float((first[name].double() - second[name].double()).square().sum()) for name in first))


@pytest.mark.guarantees(
    "Adding or removing one record moves `gradients`, all of them taken together as one vector, by at most "
    "`sensitivity` in the Euclidean norm."
)
@pytest.mark.guarantees(
    "Adding or removing any record, whatever its values, moves the sum by at most C, as long as the others' "
    "gradients are rounded as before (docs/privacy.md; with ``micro_batch_size=1`` they always are)."
)
@settings(max_examples=50)
@given(data=st.data())
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("cnn", "vmap"))) for n in MODELS])
def test_adding_any_record_moves_the_sum_by_at_most_the_clip_norm(name, data):
    make, shape = MODELS[name]
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = make()
    for parameter in model.parameters():
        parameter.data *= data.draw(st.sampled_from([1e-3, 1.0, 30.0]))
    x, y = torch.randn(5, *shape), torch.randint(3, (5,))
    pattern = torch.tensor(data.draw(st.lists(st.sampled_from(STRANGE), min_size=1, max_size=4)))
    extra = torch.randn(shape) if data.draw(st.booleans()) else torch.ones(shape)
    extra = (extra.flatten() * pattern.repeat(extra.numel())[: extra.numel()]).reshape(shape)
    label = data.draw(st.integers(-2, 5))  # some are no class at all
    clip_norm = data.draw(st.sampled_from([1e-3, 0.5, 40.0]))
    clipping = data.draw(st.sampled_from(["flat", "automatic"]))

    without = clipped_gradient_sum(model, Categorical(), x, y, clip_norm, clipping=clipping)
    with_extra = clipped_gradient_sum(
        model,
        Categorical(),
        torch.cat([x, extra[None]]),
        torch.cat([y, torch.tensor([label])]),
        clip_norm,
        clipping=clipping,
    )
    assert all(torch.isfinite(g).all() for g in with_extra.gradients.values())
    assert distance(without.gradients, with_extra.gradients) <= clip_norm


@pytest.mark.guarantees("A record whose loss or gradient is not finite contributes zero.")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", MODELS)
def test_a_record_that_is_not_finite_contributes_zero(name, bad):
    make, shape = MODELS[name]
    model = make()
    x, y = torch.randn(6, *shape), torch.randint(3, (6,))
    expected = clipped_gradient_sum(model, Categorical(), x[[0, 1, 3, 4, 5]], y[[0, 1, 3, 4, 5]], 0.5)
    x[2].view(-1)[0] = bad
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.5)
    for gradient, other in zip(clipped.gradients.values(), expected.gradients.values(), strict=True):
        assert torch.allclose(gradient, other, atol=1e-6)


@pytest.mark.guarantees("Values never raise, but for whole numbers outside of a table that the model looks them up in.")
def test_bad_targets_contribute_zero_and_never_raise():
    model = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(3, 4)
    good = clipped_gradient_sum(model, Categorical(), x[:1], torch.tensor([1]), 0.5)
    bad = clipped_gradient_sum(model, Categorical(), x, torch.tensor([1, -1, 3]), 0.5)
    assert distance(good.gradients, bad.gradients) < 1e-7
    targets = torch.tensor([[0.5] * 3, [math.nan] * 3, [math.inf] * 3])
    good = clipped_gradient_sum(model, HomoscedasticGaussian(), x[:1], targets[:1], 0.5)
    bad = clipped_gradient_sum(model, HomoscedasticGaussian(), x, targets, 0.5)
    assert distance(good.gradients, bad.gradients) < 1e-7


def nearly_cancelling(dtype, positions=32, width=48):
    """Layer inputs and output gradients whose products over positions cancel to almost nothing."""
    a = torch.randn(4, 1, positions, width) * 1e4
    g = torch.randn(4, 1, positions, width)
    a[:, :, 1::2] = a[:, :, ::2] * (1 + 1e-6 * torch.randn(4, 1, positions // 2, 1))
    g[:, :, 1::2] = -g[:, :, ::2]
    return a.to(dtype).float(), g.to(dtype).float()


@pytest.mark.guarantees(
    "The norm that is clipped is the norm of what is summed, whatever cancels in it: `Dense` and `SparseRows` take "
    "the norm of the very numbers that they sum, and `Outer` never reports less than what rounding could "
    "leave."
)
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_record_gets_through_with_more_than_the_clip_norm_when_its_gradient_nearly_cancels(dtype, precision):
    a, g = nearly_cancelling(dtype)
    outer = Outer(a, g, torch.Size((48, 48)))
    torch.set_float32_matmul_precision(precision)
    try:
        for form in (outer, outer.dense()):
            for clip_norm in (1e-3, 1.0, 100.0):
                factors = (clip_norm / (1 + 1e-4) / form.squared_norms().sqrt()).clamp(max=1.0)
                for record in range(len(a)):
                    alone = form.weighted_sum(factors * (torch.arange(len(a)) == record))
                    assert float(alone.double().norm()) <= clip_norm
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_gram_matrix_in_float32_would_have_let_such_a_record_through():
    """The reason for float64 above: this test shows that the case is hard enough to catch the mistake."""
    a, g = nearly_cancelling(torch.float32)
    naive = ((a @ a.mT) * (g @ g.mT)).sum(dim=(1, 2, 3)).clamp_min(0.0).sqrt()
    true = Dense((g.double().mT @ a.double()).squeeze(1)).squared_norms().sqrt()
    assert float((true / naive).max()) > 1.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_a_model_whose_gradients_nearly_cancel_over_positions_is_clipped(dtype, precision):
    class Difference(nn.Module):
        """Positions come in pairs that are subtracted: per-record gradients almost vanish, their terms do not."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(40, 40)

        def forward(self, x):
            h = self.layer(x)
            return (h[:, ::2] - h[:, 1::2]).sum(1)[:, :3] * 1e3

    torch.set_float32_matmul_precision(precision)
    try:
        model = Difference().to(dtype)
        x = torch.randn(6, 8, 40).to(dtype) * 1e3
        x[:, 1::2] = (x[:, ::2].float() * (1 + 1e-4)).to(dtype)
        y = torch.randint(3, (6,))
        for clip_norm in (1e-2, 1.0):
            for record in range(6):
                pick = slice(record, record + 1)
                alone = clipped_gradient_sum(model, Categorical(), x[pick], y[pick], clip_norm)
                nothing = {name: torch.zeros_like(g) for name, g in alone.gradients.items()}
                assert distance(alone.gradients, nothing) <= clip_norm
    finally:
        torch.set_float32_matmul_precision("highest")


class Subtracted(nn.Module):
    """The outputs of two positions, one subtracted from the other."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        h = self.layer(x)
        return h[:, 0] - h[:, 1]


@pytest.mark.parametrize("apart", [1e-4, 1e-6, 1e-8, 1e-9, 1e-10, 1e-12])
def test_a_model_in_float64_whose_gradients_nearly_cancel_over_positions_is_clipped(apart):
    """Gram matrices in float64 cancel too: such records got through with a thousand times the clip norm."""
    model = Subtracted().double()
    x, y = torch.randn(8, 2, 64).double(), 1e12 * torch.randn(8, 64).double()
    x[:, 1] = x[:, 0] + apart * torch.randn(8, 64).double()
    for record in range(8):
        pick = slice(record, record + 1)
        alone = clipped_gradient_sum(model, HomoscedasticGaussian(noise_std=1.0), x[pick], y[pick], 1.0)
        assert float(alone.gradients["layer.weight"].norm()) <= 1.0


def terms_of(first, second, way):
    """Two products as one gradient: over positions, in draws of the weights, or as a product and rows."""
    shape = torch.Size((16, 16))
    outer = [Outer(a[:, None, None], g[:, None, None], shape) for a, g in (first, second)]
    if way == "joint":
        return Joint(tuple(outer), (torch.zeros(16, 16).double(),) * 2)
    if way == "tied":
        owners, rows = torch.arange(len(first[0])).repeat_interleave(16), torch.arange(16).repeat(len(first[0]))
        return Tied(outer[0], SparseRows(owners, rows, outer[1].dense().values.flatten(0, 1), len(first[0]), shape))
    both = combine(*outer)
    return both if way == "outer" else Deferred.of(both.inputs[:, 0], both.output_gradients[:, 0], shape)


@pytest.mark.guarantees(
    "The norm that is clipped is the norm of what is summed, whatever cancels in it: `Dense` and `SparseRows` take "
    "the norm of the very numbers that they sum, and `Outer` never reports less than what rounding could "
    "leave."
)
@pytest.mark.parametrize("way", ["outer", "deferred", "joint", "tied"])
@pytest.mark.parametrize("apart", [1e-4, 1e-8, 1e-9, 1e-10])
def test_in_float64_no_form_measures_less_than_it_sums(way, apart):
    a, g = torch.randn(40, 16).double(), torch.randn(40, 16).double()
    form = terms_of((a, g), (a + apart * torch.randn(40, 16).double(), -g), way)
    factors = form.squared_norms().rsqrt()
    for record in range(40):
        assert float(form.weighted_sum(factors * (torch.arange(40) == record)).norm()) <= 1 + 1e-4


@settings(max_examples=30)
@given(data=st.data())
def test_random_architectures_give_the_truth(data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    channels, side = data.draw(st.integers(1, 4)), data.draw(st.integers(4, 9))
    shape = (channels, side, side)
    layers = []
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["conv", "group norm", "instance norm", "layer norm", "act", "pool"]))
        if kind == "conv":
            groups = data.draw(st.sampled_from([g for g in (1, 2, 4) if channels % g == 0]))
            out = groups * data.draw(st.integers(1, 3))
            kernel, stride = data.draw(st.integers(1, min(3, side))), data.draw(st.integers(1, 2))
            padding, dilation = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 2))
            if side + 2 * padding < dilation * (kernel - 1) + 1:
                dilation = 1
            bias = data.draw(st.booleans())
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups, bias))
            channels = out
        elif kind == "group norm" and channels * side * side > 2:
            layers.append(nn.GroupNorm(1, channels))
        elif kind == "instance norm" and side > 1:
            layers.append(nn.InstanceNorm2d(channels, affine=True))
        elif kind == "layer norm":
            layers.append(nn.LayerNorm(side))
        elif kind == "act":
            # autograd itself refuses an activation that overwrites what another one keeps
            after_another = bool(layers) and isinstance(layers[-1], (nn.ReLU, nn.Tanh, nn.GELU))
            layers.append(data.draw(st.sampled_from([nn.ReLU(inplace=not after_another), nn.Tanh(), nn.GELU()])))
        elif side > 1:
            layers.append(nn.MaxPool2d(2, 1))
        side = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[-1]
    layers += [nn.Flatten(), nn.Linear(channels * side * side, 3)]
    model = nn.Sequential(*layers).double()
    size = data.draw(st.sampled_from([0, 1, 7]))
    x, y = torch.randn(size, *shape).double(), torch.randint(3, (size,))
    clip_norm = data.draw(st.sampled_from([0.1, 2.0]))
    clipped = clipped_gradient_sum(model, Categorical(), x, y, clip_norm)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, clip_norm), tolerance=1e-9)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("name", MODELS)
def test_any_micro_batch_size_gives_the_same_result(name, micro_batch_size):
    make, shape = MODELS[name]
    model = make()
    x, y = torch.randn(8, *shape), torch.randint(3, (8,))
    whole = clipped_gradient_sum(model, Categorical(), x, y, 0.5)
    parts = clipped_gradient_sum(model, Categorical(), x, y, 0.5, micro_batch_size=micro_batch_size)
    assert distance(whole.gradients, parts.gradients) < 2e-6


def test_an_early_break_leaks_no_partial_sum_into_the_next_step():
    class BreaksOnce(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls_left = nn.Linear(4, 3), math.inf

        def forward(self, x):
            self.calls_left -= 1
            if self.calls_left < 0:
                raise KeyboardInterrupt
            return self.layer(x)

    model = BreaksOnce()
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    expected = clipped_gradient_sum(model, Categorical(), x, y, 0.5, micro_batch_size=2)
    model.calls_left = 2
    with pytest.raises(KeyboardInterrupt):
        clipped_gradient_sum(model, Categorical(), x, y, 0.5, micro_batch_size=2)
    model.calls_left = math.inf
    again = clipped_gradient_sum(model, Categorical(), x, y, 0.5, micro_batch_size=2)
    assert distance(expected.gradients, again.gradients) == 0.0


@pytest.mark.guarantees(
    "Adding or removing any record, whatever its values, moves the sum by at most C, as long as the others' "
    "gradients are rounded as before (docs/privacy.md; with ``micro_batch_size=1`` they always are)."
)
@pytest.mark.parametrize("micro_batch_size", [None, 10**6])
@pytest.mark.parametrize("layers", [[], [nn.PReLU()]], ids=["book-keeping", "vmap"])
def test_one_record_among_very_many_moves_the_sum_by_at_most_the_clip_norm(layers, micro_batch_size):
    """All gradients alike: a float32 sum of this many rounds by more than the room that clipping leaves."""
    model, count = nn.Sequential(*layers, nn.Linear(4, 2)), 300_001
    x, y = torch.full((count, 4), 10.0), torch.zeros(count, dtype=torch.long)
    options = {"clip_norm": 1.0, "micro_batch_size": micro_batch_size}
    with_record = clipped_gradient_sum(model, Categorical(), x, y, **options)
    without = clipped_gradient_sum(model, Categorical(), x[1:], y[1:], **options)
    assert all(g.dtype == torch.float64 for g in with_record.gradients.values())
    assert 0.994 < distance(with_record.gradients, without.gradients) <= 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip_norm": -1.0}, r"clip_norm must be > 0, got -1.0\."),
        ({"clip_norm": float("nan")}, "clip_norm must be a finite number"),
        ({"clip_norm": 1.0, "clipping": "layerwise"}, "clipping must be one of 'flat', 'automatic'"),
        ({"clip_norm": 1.0, "micro_batch_size": 0}, "micro_batch_size must be >= 1"),
        ({"clip_norm": 1.0, "y": torch.zeros(3, dtype=torch.long)}, "one row per record"),
    ],
)
def test_bad_arguments_get_one_clear_line(arguments, message):
    y = arguments.pop("y", torch.zeros(4, dtype=torch.long))
    with pytest.raises(DpbnnError, match=message):
        clipped_gradient_sum(nn.Linear(6, 3), Categorical(), torch.randn(4, 6), y, **arguments)
