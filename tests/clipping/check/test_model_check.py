"""The first run of a model on synthetic records: buffers, outputs, targets, and features that are wiped out."""

import pytest
import torch
from torch import nn

from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.errors import DpbnnError, DpbnnWarning
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from tests.clipping.check.test_compatibility import refuses


class RunningMean(nn.Module):
    def __init__(self, assign):
        super().__init__()
        self.layer, self.assign = nn.Linear(6, 3), assign
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        update = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        if self.assign:
            self.mean = update
        else:
            self.mean.copy_(update)
        return self.layer(x - self.mean)


REFUSED = {
    "running mean written in place": (lambda: RunningMean(False), (6,), r"Buffer 'mean' changes"),
    "running mean assigned": (lambda: RunningMean(True), (6,), r"Buffer 'mean' changes"),
    "spectral norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
        (6,),
        r"Buffer .* changes",
    ),
    "a tuple": (lambda: nn.LSTM(6, 3, batch_first=True), (5, 6), r"must return one tensor, got tuple"),
    "one output for the batch": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)),
        (6,),
        r"one row per record",
    ),
}


@pytest.mark.guarantees(
    "A model that mixes records or keeps anything of them, as far as synthetic records show, is refused."
)
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_buffers_change_or_whose_outputs_are_no_rows_of_records_is_refused(name):
    make, shape, message = REFUSED[name]
    refuses(make(), shape, message)


@pytest.mark.guarantees("The model is left as it is, at every moment.")
def test_refusing_leaves_buffers_alone():
    model = RunningMean(False)
    with pytest.raises(DpbnnError):
        clipped_gradient_sum(model, Categorical(), torch.randn(4, 6), torch.zeros(4, dtype=torch.long), 1.0)
    assert torch.equal(model.mean, torch.zeros(6))


@pytest.mark.parametrize(("groups", "warns"), [(6, True), (3, True), (2, False)])
def test_group_norm_that_wipes_plain_features_out_gets_a_warning(groups, warns, recwarn):
    model = nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(groups, 6), nn.Linear(6, 3))
    check_model(model, Categorical(), torch.randn(4, 6), torch.zeros(4, dtype=torch.long))
    assert any(issubclass(w.category, DpbnnWarning) and "GroupNorm '1'" in str(w.message) for w in recwarn) == warns


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "message"),
    [
        (Categorical(), 3, torch.zeros(4), "integer labels"),
        (Categorical(), 3, torch.zeros(4, 1, dtype=torch.long), "integer labels"),
        (HomoscedasticGaussian(), 3, torch.zeros(4), "reshape"),
        (HomoscedasticGaussian(), 1, torch.zeros(4, dtype=torch.long), "floating-point targets"),
        (HomoscedasticGaussian(), 2, torch.zeros(4, 3), "reshape"),
    ],
)
def test_targets_that_do_not_fit_are_refused(likelihood, outputs, y, message):
    with pytest.raises(DpbnnError, match=message):
        clipped_gradient_sum(nn.Linear(6, outputs), likelihood, torch.randn(4, 6), y, 1.0)
