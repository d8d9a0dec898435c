"""What a method's state holds is compared, and put back, however deep it lies."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from dpbnn.training.steps.contents import Contents


@dataclass
class Moving:
    weights: dict = field(default_factory=lambda: {"w": torch.zeros(2)})
    velocity: list = field(default_factory=lambda: [torch.zeros(2)])
    nested: dict = field(default_factory=lambda: {"deep": [{"tensor": torch.zeros(1)}]})
    helper: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(mean=torch.zeros(1), count=0))
    rate: float = 0.1


def replace_in_dict(state):
    state.weights["w"] = torch.zeros(2)


def replace_in_list(state):
    state.velocity[0] = torch.zeros(2)


def replace_list(state):
    state.velocity = [torch.zeros(2)]


def replace_deep(state):
    state.nested["deep"][0]["tensor"] = torch.zeros(1)


def replace_in_object(state):
    state.helper.mean = torch.zeros(1)


def count(state):
    state.helper.count += 1


def change_rate(state):
    state.rate = 0.2


def add_attribute(state):
    state.helper.further = torch.zeros(1)
    del state.helper.mean


CHANGES = [
    add_attribute,
    replace_in_dict,
    replace_in_list,
    replace_list,
    replace_deep,
    replace_in_object,
    count,
    change_rate,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_can_be_put_back(change):
    state = Moving()
    before = Contents(state)
    change(state)
    assert before != Contents(state)
    assert not before.still_in(Contents(state))
    before.put_back()
    assert before == Contents(state)


def test_numbers_in_tensors_may_change():
    state = Moving()
    before = Contents(state)
    state.weights["w"].add_(1)
    before.put_back()
    assert before == Contents(state)
    assert state.weights["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "add",
    [lambda state: state.velocity.append(torch.zeros(2)), lambda state: setattr(state, "further", torch.zeros(2))],
)
def test_what_is_new_is_seen_but_nothing_is_missing(add):
    """Also an attribute that the class does not declare."""
    state = Moving()
    before = Contents(state)
    add(state)
    assert before != Contents(state)
    assert before.still_in(Contents(state))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_of_an_optimizer_tensors_count_and_settings_do_not(optimizer):
    weight = torch.zeros(2, requires_grad=True)
    state = SimpleNamespace(optimizer=optimizer([weight], lr=0.1, momentum=0.9) if optimizer is torch.optim.SGD
                            else optimizer([weight], lr=0.1))  # fmt: skip
    weight.grad = torch.ones(2)
    state.optimizer.step()
    before = Contents(state)
    assert len(before.tensors) >= 1
    state.optimizer.param_groups[0]["lr"] = 0.2
    state.optimizer.step()
    assert before == Contents(state)
    key, values = next((key, value) for key, value in state.optimizer.state[weight].items() if value.dim() == 1)
    state.optimizer.state[weight][key] = values.clone()
    assert before != Contents(state)


def test_memory_that_is_shared_is_seen_through_views():
    state = Moving()
    assert Contents(state).shares_memory_with([state.weights["w"][1:]])
    assert not Contents(state).shares_memory_with([torch.zeros(2)])


def test_what_holds_itself_is_looked_at_once():
    state = Moving()
    state.nested["state"] = state
    before = Contents(state)
    replace_in_dict(state)
    assert before != Contents(state)
