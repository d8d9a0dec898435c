"""A model and a likelihood as a function of all trained weights: where weights go, and what stays as it was."""

import pytest
import torch
from torch import nn

from dpbnn.clipping.objective import Objective
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian

X, Y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3


class Shared(nn.Module):
    """One layer under two names, and its weight under a third."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)
        self.third.weight = self.first.weight

    def forward(self, x):
        return self.third(self.second(self.first(x)))


def test_a_weight_that_is_shared_is_replaced_wherever_it_is_used():
    model, other = Shared(), Shared()
    objective = Objective(model, Categorical())
    weights = {name: p.detach() for name, p in other.named_parameters()}
    assert set(weights) == {"first.weight", "first.bias", "third.bias"} == set(objective.names)
    assert torch.equal(objective.outputs(weights, X), other(X))


@pytest.mark.parametrize("name", ["mean", "count"])
def test_a_run_uses_copies_of_buffers_and_names_those_that_it_changes(name):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            for each in ("mean", "count", "untouched"):
                self.register_buffer(each, torch.zeros(3))

        def forward(self, x):
            out = self.layer(x) + self.untouched
            if name == "mean":
                self.mean += out.detach().mean(dim=0)  # in place
            else:
                self.count = self.count + 1  # replaced
            return out

    model = Counting()
    objective = Objective(model, Categorical())
    objective.outputs(objective.model_weights(), X)
    assert objective.changed_buffers(objective.model_weights(), X) == [name]
    assert not any(buffer.any() for buffer in model.buffers())


def test_a_model_may_write_to_its_input():
    class Writes(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2))

    objective, before = Objective(Writes(4, 3), Categorical()), X.clone()
    first = objective.outputs(objective.model_weights(), X)
    assert torch.equal(X, before)
    assert torch.equal(objective.outputs(objective.model_weights(), X), first)


def test_weights_are_cast_to_the_types_of_the_model_and_those_of_the_likelihood_stay():
    likelihood = HomoscedasticGaussian()
    own = likelihood.initial_weights(3)
    objective = Objective(nn.Linear(4, 3).bfloat16(), likelihood, tuple(own))
    cast = objective.cast({name: p.float() for name, p in objective.model_weights().items()} | own)
    assert {values.dtype for name, values in cast.items() if name not in own} == {torch.bfloat16}
    assert all(cast[name] is values for name, values in own.items())


def test_each_records_loss_is_that_of_the_record_alone():
    objective = Objective(nn.Linear(4, 3), Categorical())
    weights = objective.model_weights()
    together = objective.losses(objective.outputs(weights, X), Y, weights)
    alone = torch.stack([objective.loss_of_one(weights, x, y) for x, y in zip(X, Y, strict=True)])
    torch.testing.assert_close(together, alone)


def test_outputs_that_are_no_tensor_and_losses_that_are_not_one_for_each_record_are_refused():
    class Summed(Categorical):
        def negative_log_likelihood(self, outputs, targets, weights):
            return super().negative_log_likelihood(outputs, targets, weights).sum()

    recurrent = Objective(nn.LSTM(4, 3), Categorical())
    with pytest.raises(DpbnnError, match="must return one tensor, got tuple"):
        recurrent.outputs(recurrent.model_weights(), X)
    objective = Objective(nn.Linear(4, 3), Summed())
    with pytest.raises(DpbnnError, match=r"Summed.*one number per record.*0 dimensions"):
        objective.losses(torch.zeros(5, 3), Y, {})
