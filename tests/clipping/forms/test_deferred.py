"""What a layer on many positions keeps until the clip factors are known: its norms are those of its sums."""

import math

import pytest
import torch
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.forms import deferred
from dpbnn.models.likelihoods import Categorical
from tests.clipping.engines.test_hooks import WIDTH, Pictures, batch, repeated
from tests.clipping.test_gradient import summed
from tests.truth import assert_equals_truth, clipped_sum


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
