"""A replica has the model's tensors and nothing else of it."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping import check_model
from dpbnn.models.replica import Pool, replica, state_of, structure_of


class Odd(nn.Module):
    """Modules in lists, bound methods, tied weights and tensors as attributes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.hidden = [nn.Tanh(), {"last": nn.Linear(4, 2)}]
        self.last = self.hidden[1]["last"]
        self.act = self.squashed
        self.scale = torch.full((4,), 2.0)
        self.made = {"by": [self.scale * torch.ones(4, requires_grad=True)]}  # which deepcopy alone refuses
        self.register_buffer("shift", torch.ones(4))

    def squashed(self, x):
        return self.hidden[0](x) * self.scale

    def forward(self, x):
        return self.hidden[1]["last"](self.act(self.second(self.first(x))) + self.shift + self.made["by"][0].detach())


@pytest.mark.guarantees("Parameters, buffers and other tensors are shared.")
def test_a_replica_shares_tensors_and_no_modules():
    model = Odd()
    other = replica(model)
    assert not {id(own) for own in model.modules()} & {id(own) for own in other.modules()}
    assert [id(p) for p in model.parameters()] == [id(p) for p in other.parameters()]
    assert other.shift is model.shift
    assert other.scale is model.scale
    assert other.made["by"][0] is model.made["by"][0]
    assert other.act.__self__ is other
    assert other.hidden[1]["last"] is other.last
    x = torch.randn(5, 4)
    assert torch.equal(model(x), other(x))


@pytest.mark.guarantees("Nothing that happens to the replica's modules happens to the model's.")
def test_what_happens_to_a_replica_does_not_happen_to_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    other = replica(model)
    other.eval()
    other[0].register_forward_hook(lambda *_: None)
    other[0].extra = 3
    del other[1]
    assert model.training
    assert len(model) == 2
    assert not model[0]._forward_hooks
    assert not hasattr(model[0], "extra")
    assert not hasattr(other[0], "missing")


def hook_with_a_closure(model):
    model.register_forward_hook(lambda module, given, output: output + model.bias)


def hook_with_a_default(model):
    def added(module, given, output, bias_of=model):
        return output + bias_of.bias

    model.register_forward_hook(added)


def another_forward(model):
    before = model.forward
    model.forward = lambda x: before(x) + model.bias


@pytest.mark.parametrize("keep", [hook_with_a_closure, hook_with_a_default, another_forward])
def test_functions_that_have_kept_the_model_lead_to_the_replica(keep):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    keep(model)
    other = replica(model)
    assert torch.equal(other(x), model(x))
    weights = {"weight": torch.zeros(2, 3), "bias": torch.ones(2)}
    found = torch.func.functional_call(other, weights, (x,))
    assert torch.equal(found, torch.full((4, 2), 2.0))
    assert not torch.equal(model(x), found)


def test_what_a_function_keeps_beside_the_model_is_shared():
    model, seen = nn.Linear(3, 2), []

    def noted(module, given, output):
        seen.append(output + 0 * model.bias)

    model.register_forward_hook(noted)
    replica(model)(torch.ones(1, 3))
    assert len(seen) == 1


def test_what_leads_to_the_model_where_no_copy_can_follow_is_refused_by_its_name():
    model = nn.Linear(3, 2)
    model.steps = [lambda x: model(x)]
    with pytest.raises(dpbnn.DpbnnError, match="'steps' that leads to the model itself"):
        replica(model)


def test_a_model_that_cannot_be_copied_is_refused_with_the_reason():
    model = nn.Linear(3, 2)
    model.generator = (n for n in range(3))
    with pytest.raises(dpbnn.DpbnnError, match="Linear cannot be copied: cannot pickle 'generator' object"):
        replica(model)


def test_parametrized_and_transformer_modules_have_replicas_that_run_alike():
    torch.manual_seed(0)
    for model, x in (
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), torch.randn(4, 3)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(3, 5, 8)),
        (nn.LSTM(3, 4, num_layers=2, batch_first=True), torch.randn(2, 5, 3)),
    ):
        first, second = model(x), replica(model)(x)
        first, second = (own[0] if isinstance(own, tuple) else own for own in (first, second))
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: setattr(model[0], "extra", 3),
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: model[0].register_buffer("shift", torch.ones(2)),
        lambda model: setattr(model[0], "scale", torch.ones(2)),
        lambda model: model.append(nn.Tanh()),
    ],
)
def test_a_change_of_the_model_is_noticed(change):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    before = structure_of(model)
    assert structure_of(model) == before
    change(model)
    assert structure_of(model) != before


class Gated(nn.Module):
    """Has all kinds of state that its outputs may depend on beside its trained weights."""

    share = 0.0

    def __init__(self, then):
        super().__init__()
        self.layer, self.then, self.settings = nn.Linear(2, 2), then, SimpleNamespace(share=0.0)
        self.register_buffer("gate", torch.zeros(()))
        self.frozen, self.tensor = nn.Parameter(torch.zeros(3), requires_grad=False), torch.zeros(2)
        self.table = {"gate": torch.zeros(2)}


def keeping(values):
    return lambda x: x * values[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda model, _: model.gate.fill_(1),
        lambda model, _: model.frozen.data.fill_(1),
        lambda model, _: model.tensor.fill_(1),
        lambda model, _: model.table["gate"].fill_(1),
        lambda model, _: setattr(model.settings, "share", 1.0),
        lambda model, _: setattr(type(model), "share", 1.0),
        lambda model, _: setattr(type(model), "extra", lambda self: 1),
        lambda model, _: model.then.__closure__[0].cell_contents.append(2.0),
        lambda model, _: setattr(model.then, "__defaults__", (3,)),
        lambda _, likelihood: setattr(likelihood, "mix", 1.0),
    ],
)
def test_whatever_a_verdict_rests_on_is_noticed(change):
    kind = type("Own", (Gated,), {})
    model, likelihood = kind(keeping([1.0])), SimpleNamespace(mix=0.0)
    before = state_of(model, likelihood)
    with torch.no_grad():
        model.layer.weight.fill_(1)
    assert state_of(model, likelihood) == before, "trained weights are not part of it"
    change(model, likelihood)
    assert state_of(model, likelihood) != before


def test_what_comes_after_something_that_is_gone_is_not_taken_for_it():
    first = nn.Linear(2, 2)
    model = nn.Sequential(first)
    model.then = torch.zeros(2)
    before, number = structure_of(model), id(model.then)
    for _ in range(100):
        model.then = None
        model.then = torch.zeros(2)
        assert structure_of(model) != before
        if id(model.then) == number:
            return
    pytest.skip("no address came again")


def test_a_verdict_keeps_no_model_alive():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.then = lambda x: self.layer(x)

        def forward(self, x):
            return self.layer(x)

    model = Model()
    check_model(model, dpbnn.Categorical(), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_pool_lends_each_thing_to_one_and_makes_new_ones_when_its_key_changes():
    made, key = [], ["a"]

    def make():
        made.append(object())
        return made[-1]

    pool = Pool(make, key=lambda: key[0])
    with pool.lent() as first, pool.lent() as second:
        assert first is not second
    with pool.lent() as again:
        assert again in (first, second)
    assert len(made) == 2
    key[0] = "b"
    with pool.lent() as other:
        assert other not in (first, second)
    with pytest.raises(KeyError), pool.lent() as broken:
        raise KeyError
    with pool.lent() as fresh:
        assert fresh is not broken


class Child(nn.Module):
    """Knows the module that it is in, weakly."""

    def __init__(self, parent):
        super().__init__()
        self.layer, self.parent = nn.Linear(3, 2), weakref.ref(parent)

    def forward(self, x):
        self.parent().kept = x.detach()
        return self.layer(x)


def test_a_weak_reference_to_the_model_is_refused():
    model = nn.Sequential()
    model.append(Child(model))
    with pytest.raises(dpbnn.DpbnnError, match=r"'0\.parent' that leads to the model itself"):
        replica(model)


hooked = nn.Linear(3, 2)


def keeps_by_its_global_name(module, given, output):
    hooked.kept = output.detach()


def test_functions_that_know_the_model_by_a_global_name_lead_to_the_replica():
    hooked.register_forward_hook(keeps_by_its_global_name)
    other = replica(hooked)
    other(torch.ones(1, 3))
    assert not hasattr(hooked, "kept")
    assert hasattr(other, "kept")
    with pytest.raises(dpbnn.DpbnnError, match="keeps 'kept'"):
        dpbnn.clipped_gradient_sum(hooked, dpbnn.Categorical(), torch.ones(2, 3), torch.tensor([0, 1]), 1.0)
