"""What book-keeping leaves behind, and what it notices."""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.engines import book_keeping
from dpbnn.models.likelihoods import Categorical
from tests.clipping.engines.test_engines import CLASSES, MODELS, Wrapped
from tests.truth import assert_equals_truth, clipped_sum


class WritesToInput(nn.Module):
    """Changes what the second layer was given, after it ran; plain autograd refuses that."""

    def __init__(self, in_place):
        super().__init__()
        self.first, self.second, self.in_place = nn.Linear(8, 8), nn.Linear(8, CLASSES), in_place

    def forward(self, x):
        h = torch.tanh(self.first(x)) + 1.0
        out = self.second(h)
        return out + (h.mul_(3.0) if self.in_place else h * 3.0)[:, :CLASSES]


@pytest.mark.guarantees(
    "A traced tensor that is changed in place afterwards is noticed, and the pass done again on copies."
)
def test_an_input_that_is_written_to_after_the_layer_ran_is_traced_as_it_was():
    in_place, plain = WritesToInput(True), WritesToInput(False)
    plain.load_state_dict(in_place.state_dict())
    x, y = torch.randn(5, 8), torch.randint(CLASSES, (5,))
    clipped = clipped_gradient_sum(in_place, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(plain, Categorical(), x, y, 0.2))


def test_an_embedding_tied_to_the_output_layer_gives_the_truth():
    class LanguageModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 4)
            self.output = nn.Linear(4, 11, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, tokens):
            return self.output(torch.tanh(self.embedding(tokens)).mean(1))

    model = LanguageModel()
    x, y = torch.randint(11, (7, 5)), torch.randint(11, (7,))
    assert check_model(model, Categorical(), x, y).engine == "book_keeping"
    assert_equals_truth(
        clipped_gradient_sum(model, Categorical(), x, y, 0.2), clipped_sum(model, Categorical(), x, y, 0.2)
    )


@pytest.mark.guarantees("A weight whose use is not accounted for is noticed and never dropped.")
def test_a_path_that_the_trial_did_not_take_is_noticed_when_it_is_taken():
    class Sometimes(nn.Module):
        """Uses its layer's weight once more after it has been told to."""

        def __init__(self):
            super().__init__()
            self.layer, self.twice = nn.Linear(8, CLASSES), False

        def forward(self, x):
            out = self.layer(x)
            return F.linear(x, self.layer.weight.roll(1, 0)) + out if self.twice else out

    model = Sometimes()
    x, y = torch.randn(5, 8), torch.randint(CLASSES, (5,))
    clipped_gradient_sum(model, Categorical(), x, y, 0.2)  # chooses book-keeping
    model.twice = True
    clipped = clipped_gradient_sum(model, Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, Categorical(), x, y, 0.2))


@pytest.mark.guarantees("Nothing is left on the user's modules, also when an exception interrupts.")
@pytest.mark.guarantees("The model is left as it was, also when an exception interrupts.")
@pytest.mark.parametrize("name", ["in-place module", "lstm", "attention", "hooks of the user's own"])
@pytest.mark.filterwarnings("ignore:.*vmap:UserWarning", "ignore:.*performance drop:UserWarning")
def test_the_model_is_left_as_it_was(name):
    model = Wrapped(MODELS[name][0]())
    before = {key: copy.deepcopy(vars(module)) for key, module in model.named_modules() if not list(module.children())}
    state = copy.deepcopy(model.state_dict())
    clipped_gradient_sum(model, Categorical(), torch.randn(3, 5, 8), torch.randint(CLASSES, (3,)), 1.0)
    for key, module in model.named_modules():
        if key in before:
            assert vars(module).keys() == before[key].keys()
            for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
                assert len(vars(module)[hooks]) == len(before[key][hooks])
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.guarantees("Nothing is left on the user's modules, also when an exception interrupts.")
@pytest.mark.guarantees("The model is left as it was, also when an exception interrupts.")
def test_the_model_is_left_as_it_was_when_an_exception_interrupts():
    class Interrupted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, CLASSES)
            self.calls = 0

        def forward(self, x):
            out = self.layer(x)
            if len(x) == 16:
                raise KeyboardInterrupt
            return out

    model = Interrupted()
    precision = torch.get_float32_matmul_precision()
    with pytest.raises(KeyboardInterrupt):
        clipped_gradient_sum(model, Categorical(), torch.randn(16, 8), torch.randint(CLASSES, (16,)), 1.0)
    assert not model.layer._forward_hooks
    assert not model.layer._forward_pre_hooks
    assert torch.get_float32_matmul_precision() == precision


def test_a_layer_that_is_used_again_waits_for_the_streams_before(monkeypatch):
    """Numbers stand in for the streams of a capture: what adds to another stream's gradient must have waited for it."""
    streams, joined, made_in, now = iter(range(1, 100)), set(), {}, [0]

    @contextmanager
    def beside():
        before, now[0] = now[0], next(streams)
        yield now[0]
        now[0] = before

    original = book_keeping.Trace._add

    def add(self, name, values):
        if name in self.gradients:
            assert made_in[name] == 0 or made_in[name] in joined
        original(self, name, values)
        made_in[name] = now[0]

    monkeypatch.setattr(book_keeping, "beside", beside)
    monkeypatch.setattr(book_keeping, "join", lambda *own: joined.update(own))
    monkeypatch.setattr(book_keeping.Trace, "_add", add)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer, nn.Linear(4, CLASSES))
    clipped_gradient_sum(model, Categorical(), torch.randn(5, 4), torch.randint(CLASSES, (5,)), 0.2)
    assert joined
