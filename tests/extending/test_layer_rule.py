"""A layer rule from outside: two inputs, parameters of any name, one line in the registry, the book-keeping engine."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping import ClippingSettings, check_model, clip_and_sum, clipped_gradient_sum
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.engines.book_keeping import per_record_gradients
from dpbnn.clipping.engines.per_example import vmap_gradients
from dpbnn.clipping.forms.per_record import ANYWHERE, Dense, Outer, PerRecordGradient, Reordered, SparseRows
from dpbnn.clipping.rules import RULES, LayerRule
from dpbnn.clipping.rules.linear import linear_rule
from dpbnn.errors import DpbnnError
from dpbnn.types import Draws
from tests.extending import skeleton
from tests.truth import assert_equals_truth, clipped_sum

PAGE = skeleton("A layer rule")
RULE = RULES.pop(PAGE.Interaction)
CLASSES = 3
CATEGORICAL = dpbnn.Categorical()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(RULES, PAGE.Interaction, RULE)


@pytest.fixture
def book_keeping_only(monkeypatch):
    """Nothing falls back: not to another engine, nor for the records of one batch."""
    monkeypatch.setitem(ENGINES, "book_keeping", per_record_gradients)
    for engine in ("vmap", "loop"):
        monkeypatch.setitem(ENGINES, engine, lambda *_, engine=engine: pytest.fail(f"fell back to {engine}"))


class Model(nn.Module):
    """Two linear layers meet in the new one, which is called as `call` says."""

    def __init__(self, call=lambda layer, u, v: layer(u, v), width=4):
        super().__init__()
        self.left, self.right = nn.Linear(5, width), nn.Linear(5, 3)
        self.meet, self.call = PAGE.Interaction(width, 3, 6), call
        self.classifier = nn.Linear(6, CLASSES)
        nn.init.normal_(self.meet.offsets)

    def forward(self, x):
        h = torch.tanh(self.call(self.meet, torch.tanh(self.left(x)), torch.sin(self.right(x))))
        return self.classifier(h.flatten(1, -2).mean(1) if h.dim() > 2 else h)


def records(size, *shape, dtype=torch.float32):
    return 2 * torch.randn(size, *shape, 5, dtype=dtype), torch.arange(size) % CLASSES


def agrees(model, x, y, clip_norm=0.5, engine="book_keeping", tolerance=5e-6):
    assert check_model(model, CATEGORICAL, x, y).engine == engine
    clipped = clipped_gradient_sum(model, CATEGORICAL, x, y, clip_norm)
    assert_equals_truth(clipped, clipped_sum(model, CATEGORICAL, x, y, clip_norm), tolerance)
    return clipped


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (40,)], ids=str)
@pytest.mark.parametrize("size", [0, 1, 7])
def test_it_gives_the_truth_on_any_positions_and_no_records(book_keeping_only, shape, size):
    for clip_norm in (0.3, math.inf):
        agrees(Model(), *records(size, *shape), clip_norm)


def test_factors_that_are_not_written_out_give_the_truth_too(book_keeping_only):
    agrees(Model(width=60), *records(7, 2))


@pytest.mark.parametrize(("dtype", "summed_in", "tolerance"), [
    (torch.float64, torch.float64, 1e-12), (torch.bfloat16, torch.float32, 0.03),
])  # fmt: skip
def test_it_gives_the_truth_in_float64_and_for_a_model_in_bfloat16(book_keeping_only, dtype, summed_in, tolerance):
    clipped = agrees(Model().to(dtype), *records(7, 4, dtype=dtype), tolerance=tolerance)
    assert all(values.dtype == summed_in for values in clipped.gradients.values())


CALLS = {
    "by name, in another order": lambda layer, u, v: layer(v=v, u=u),
    "twice": lambda layer, u, v: layer(u, v) + layer(v.new_ones(()).expand_as(u), v).sin(),
    "with positions first": lambda layer, u, v: layer(u.transpose(0, 1), v.transpose(0, 1)).transpose(0, 1),
    "with records and positions merged": lambda layer, u, v: layer(u.flatten(0, 1), v.flatten(0, 1)).unflatten(
        0, u.shape[:2]
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_however_the_layer_is_called_the_result_is_the_truth(book_keeping_only, call):
    agrees(Model(CALLS[call]), *records(7, 4))


@pytest.mark.parametrize("name", ["matrices", "offsets"])
def test_a_frozen_or_a_tied_parameter_is_handled(book_keeping_only, name):
    frozen, tied = Model(), Model()
    getattr(frozen.meet, name).requires_grad_(False)
    assert f"meet.{name}" not in agrees(frozen, *records(7, 4)).gradients
    other = PAGE.Interaction(4, 3, 6)
    setattr(other, name, getattr(tied.meet, name))
    tied.other, tied.call = other, lambda layer, u, v: layer(u, v) * other(v.new_ones(u.shape), v)
    clipped = agrees(tied, *records(7, 4))
    assert len(clipped.gradients) == 6 + 2 + 1


def test_several_draws_of_the_weights_are_clipped_together(book_keeping_only):
    model = Model()
    x, y = records(7, 4)
    checked = check_model(model, CATEGORICAL, x, y)
    weights = checked.objective.model_weights()
    one = {name: torch.ones_like(values) for name, values in weights.items()}
    both = clip_and_sum(checked, Draws((weights, weights), (one, one)), x, y, ClippingSettings(0.5))
    truth = clipped_sum(model, CATEGORICAL, x, y, 0.5 / 2**0.5)  # mean and spread move alike
    assert_equals_truth(replace(both, gradients={name: g[0] for name, g in both.gradients.items()}), truth, 1e-5)


def test_a_run_trains_with_it_as_with_gradients_that_vmap_writes_out(book_keeping_only, monkeypatch):
    x, y = records(60, 2)
    plan = dpbnn.PrivacyPlan(60, 20, 2, clip_norm=1.0, noise_multiplier=5.0, delta=1e-3)

    def fit():
        torch.manual_seed(0)
        method, options = dpbnn.SGD(0.1), {"progress": False, "unsafe_seed": 3}
        return dpbnn.fit(Model(), x, y, method=method, plan=plan, likelihood=CATEGORICAL, **options).posterior.weights

    by_rule = fit()
    monkeypatch.delitem(RULES, PAGE.Interaction)
    monkeypatch.setitem(ENGINES, "vmap", vmap_gradients)
    for name, values in fit().items():
        torch.testing.assert_close(by_rule[name], values)


class Understated(PerRecordGradient):
    """Sums what it should, and says that norms are half of what they are."""

    def __init__(self, form):
        self.form = form.dense()

    def squared_norms(self):
        return self.form.squared_norms() / 4

    def weighted_sum(self, factors, target=ANYWHERE):
        return self.form.weighted_sum(factors, target)

    def finite(self):
        return self

    def dense(self):
        return self.form


def wrong(change):
    def rule(layer, u, v, output_gradients, wanted):
        return change(PAGE.interaction_rule(layer, u, v, output_gradients, wanted))

    return LayerRule(rule, RULE.parameters)


WRONG = {
    "a wrong gradient": wrong(lambda found: {name: Dense(2 * g.dense().values) for name, g in found.items()}),
    "a parameter left out": wrong(lambda found: {"offsets": found["offsets"]}),
    "norms that are too small": wrong(lambda found: {name: Understated(g) for name, g in found.items()}),
    "a parameter that it does not name": LayerRule(PAGE.interaction_rule, ("matrices",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong_is_not_used(monkeypatch, name):
    monkeypatch.setitem(RULES, PAGE.Interaction, WRONG[name])
    agrees(Model(), *records(7, 4), engine="vmap")


def test_a_rule_that_mixes_records_is_refused(monkeypatch):
    mixes = wrong(lambda found: {name: Dense(g.dense().values.roll(1, 0)) for name, g in found.items()})
    monkeypatch.setitem(RULES, PAGE.Interaction, mixes)
    with pytest.raises(DpbnnError, match="the gradient of one depends on the others"):
        check_model(Model(), CATEGORICAL, *records(7, 4))


class WithFlag(PAGE.Interaction):
    """Is called with more than tensors."""

    def forward(self, u, v, scale=1.0):
        return scale * super().forward(u, v)


def test_a_layer_that_is_called_with_more_than_tensors_is_left_to_another_engine(monkeypatch):
    monkeypatch.setitem(RULES, WithFlag, RULE)
    for call in (lambda layer, u, v: layer(u, v, 2.0), lambda layer, u, v: layer(u, v, scale=2.0)):
        model = Model(call)
        model.meet = WithFlag(4, 3, 6)
        agrees(model, *records(7, 4), engine="vmap")


def test_a_subclass_and_a_layer_with_layers_inside_have_no_rule():
    model, nested = Model(), Model()
    model.meet = WithFlag(4, 3, 6)
    nested.meet.inner = nn.PReLU()
    nested.call = lambda layer, u, v: layer.inner(layer(u, v))
    for each in (model, nested):
        agrees(each, *records(7, 4), engine="vmap")


class Equalised(nn.Linear):
    """A linear layer whose weights count as their negative: the formula of `nn.Linear` would be wrong."""

    def forward(self, x):
        return nn.functional.linear(x, -self.weight, self.bias)


def equalised_rule(layer, x, output_gradients, wanted):
    gradients = linear_rule(layer, x, output_gradients, wanted)
    if "weight" in gradients:
        gradients |= linear_rule(layer, -x, output_gradients, {"weight"})
    return gradients


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = Equalised(64, 64), nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)).mean(1))


def test_a_rule_for_a_kind_of_linear_layer_is_used_for_batches_of_any_size(monkeypatch, book_keeping_only):
    """From 257 records on, weights of `nn.Linear` are measured first and summed later, by its own formula."""
    monkeypatch.setitem(RULES, Equalised, LayerRule(equalised_rule, any_layout=True))
    model = Pooled()
    x = torch.randn(1, 24, 64) + 0.01 * torch.randn(258, 24, 64)
    y = torch.zeros(258, dtype=torch.long)
    sums = [clipped_gradient_sum(model, CATEGORICAL, x[:size], y[:size], 0.1).gradients for size in (256, 257, 258)]
    for fewer, more in pairwise(sums):
        moved = math.sqrt(sum(float((more[name] - fewer[name]).square().sum()) for name in more))
        assert 0.09 < moved < 0.1


def test_a_rule_that_is_registered_later_is_tried_before_it_is_used(monkeypatch):
    def of_the_whole_batch(layer, u, v, output_gradients, wanted):
        forms = PAGE.interaction_rule(layer, u, v, output_gradients, wanted)
        written_out = {name: form.dense().values for name, form in forms.items()}
        return {name: Dense(values.sum(0).expand_as(values)) for name, values in written_out.items()}

    model, (x, y) = Model(), records(6)
    monkeypatch.delitem(RULES, PAGE.Interaction)
    before = clipped_gradient_sum(model, CATEGORICAL, x, y, 0.5).gradients
    monkeypatch.setitem(RULES, PAGE.Interaction, replace(RULE, gradients=of_the_whole_batch))
    with pytest.raises(DpbnnError, match="records"):
        clipped_gradient_sum(model, CATEGORICAL, x, y, 0.5)
    monkeypatch.setitem(RULES, PAGE.Interaction, RULE)
    after = clipped_gradient_sum(model, CATEGORICAL, x, y, 0.5).gradients
    for name in before:
        torch.testing.assert_close(before[name], after[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", [Dense, Outer, Reordered, SparseRows])
def test_a_form_of_gradients_is_not_extended(form):
    """Joint clipping and tied weights compute with a form's fields: methods of a subclass would not count there."""
    with pytest.raises(TypeError, match=f"Scaled must extend PerRecordGradient itself, got {form.__name__}"):
        type("Scaled", (form,), {})
