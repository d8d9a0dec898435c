"""What a model does to records that it should keep apart shows on synthetic ones."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dpbnn
from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from tests.clipping.check.test_compatibility import refuses


def mixing(function):
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(function(self.first(x)))

    return Mixing()


class ZeroHead(nn.Module):
    """Standardises over the batch, and hides it behind a last layer that starts at zero."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        h = self.first(x)
        return self.last((h - h.mean(0)) / (h.std(0) + 1))


class NormalisedGradient(torch.autograd.Function):
    """Keeps records apart in the forward pass, and mixes their gradients in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / g.norm()


class KeepsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        self.last_input = x
        return self.layer(x)


class TrimmedText(nn.Module):
    """Cuts all texts to the longest in the batch, and then takes the mean."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, tokens):
        longest = int((tokens > 0).sum(1).max())
        return self.last(self.embedding(tokens[:, :longest]).mean(1))


def shared_mask(h):
    return h * (torch.rand(h.shape[1]) > 0.5)


def mask_of_its_own(h):
    return h * (torch.rand(h.shape, generator=torch.Generator().manual_seed(0)) > 0.5)


class RecurrentTimeFirst(nn.Module):
    """Reads the records as time steps."""

    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])


class Remembers(nn.Module):
    """Keeps a running mean as a plain attribute, which is no buffer, and takes no gradient through it."""

    def __init__(self):
        super().__init__()
        self.layer, self.mean = nn.Linear(6, 3), 0.0

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mean)


class RewritesWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.clamp_(-0.1, 0.1)
        return self.layer(x)


class RewritesBehindAutograd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        self.layer.weight.data[0] = 0.5  # does not count as a change for autograd
        return self.layer(x)


class Keeps(nn.Module):
    """A layer that does something with itself and its input before it runs."""

    def __init__(self, keep):
        super().__init__()
        self.layer, self.keep = nn.Linear(6, 3), keep
        self.kept, self.first, self.calls = {}, None, 0

    def forward(self, x):
        return self.layer(x) + self.keep(self, x)


def mean_by_batch_size(own, x):
    return own.kept.setdefault(len(x), x.detach().mean())


def every_input(own, x):
    own.kept.setdefault("all", []).append(x.detach())
    return 0.0


def mean_of_the_first(own, x):
    own.first = x.detach().mean(0).sum() if own.first is None else own.first
    return own.first


def positions_by_batch_size(own, x):
    own.calls += 1
    own.kept.setdefault("mask", torch.tensor([True, False]))
    own.kept.setdefault("odd", torch.tensor([math.nan, math.inf]))
    own.kept.setdefault("whole", torch.arange(3))
    return own.kept.setdefault(len(x), torch.arange(3.0))


REFUSED = {
    "a mean for each batch size": (lambda: Keeps(mean_by_batch_size), (6,), r"keeps 'kept' from its forward pass"),
    "all inputs in a list": (lambda: Keeps(every_input), (6,), r"keeps 'kept' from its forward pass"),
    "the mean of the first records": (lambda: Keeps(mean_of_the_first), (6,), r"keeps 'first' from its forward pass"),
    "mean over records": (
        lambda: mixing(lambda h: h - h.mean(0)),
        (6,),
        r"mixes records: the loss",
    ),
    "cumulative sum over records": (
        lambda: mixing(lambda h: h.cumsum(0)),
        (6,),
        r"mixes records: the loss",
    ),
    "mean over records without its gradient": (
        lambda: mixing(lambda h: h - h.mean(0).detach()),
        (6,),
        r"mixes records",
    ),
    "only in larger batches": (lambda: mixing(lambda h: h - h.mean(0).detach() * (len(h) > 8)), (6,), r"mixes records"),
    "the largest of the batch": (lambda: mixing(lambda h: h / h.detach().abs().max()), (6,), r"mixes records"),
    "behind a layer that starts at zero": (ZeroHead, (6,), r"mixes records"),
    "in the backward pass": (lambda: mixing(NormalisedGradient.apply), (6,), r"the gradient of one depends"),
    "sign by the number of records": (lambda: mixing(lambda h: h * (-1) ** len(h)), (6,), r"how many|mixes records"),
    "only in batches of 64": (lambda: mixing(lambda h: h - h.mean(0) * (len(h) >= 64)), (6,), r"mixes records"),
    "a branch on the largest value": (lambda: mixing(lambda h: h / 9 if h.abs().max() > 1e3 else h), (6,), "mixes"),
    "a branch on NaN": (lambda: mixing(lambda h: h * 0 if h.isnan().any() else h), (6,), r"mixes records"),
    "text cut to the longest (embedding)": (TrimmedText, (7,), r"mixes records"),
    "one mask for all records": (lambda: mixing(shared_mask), (6,), r"random numbers that all records share"),
    "a generator of its own": (lambda: mixing(mask_of_its_own), (6,), r"generator of its own"),
    "input kept as an attribute": (KeepsInput, (6,), r"keeps 'last_input' from its forward pass"),
    "running mean as an attribute": (Remembers, (6,), r"keeps 'mean' from its forward pass"),
    "weights rewritten in the forward pass": (RewritesWeights, (6,), r"Weight 'layer.weight' is rewritten"),
    "weights rewritten behind autograd": (RewritesBehindAutograd, (6,), r"Weight 'layer.weight' is rewritten"),
    "softmax over records": (lambda: mixing(lambda h: h.softmax(0)), (6,), r"mixes records"),
    "attention over records": (lambda: mixing(lambda h: (h @ h.T).softmax(1) @ h), (6,), r"mixes records"),
    "time first": (RecurrentTimeFirst, (5, 6), r"mixes records"),
}


@pytest.mark.guarantees(
    "A model that mixes records or keeps anything of them, as far as synthetic records show, is refused."
)
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_mixes_records_or_keeps_anything_of_them_is_refused(name):
    make, shape, message = REFUSED[name]
    refuses(make(), shape, message)


def test_what_a_model_keeps_that_is_not_of_its_records_is_its_own_affair():
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    assert check_model(Keeps(positions_by_batch_size), Categorical(), x, y).num_outputs == 3


def test_a_likelihood_that_mixes_records_is_refused():
    class Standardised(HomoscedasticGaussian):
        def negative_log_likelihood(self, outputs, targets, weights):
            return ((targets - outputs) / outputs.detach().std()).square().sum(1)

    class Averaged(HomoscedasticGaussian):
        def negative_log_likelihood(self, outputs, targets, weights):
            return super().negative_log_likelihood(outputs, targets, weights) / len(outputs)

    class Weighted(Categorical):
        def negative_log_likelihood(self, outputs, targets, weights):
            return super().negative_log_likelihood(outputs, targets, weights) * (1 + targets.max())

    x = torch.randn(4, 6)
    for likelihood in (Standardised(1.0), Averaged(1.0)):
        with pytest.raises(DpbnnError, match="mixes records"):
            clipped_gradient_sum(nn.Linear(6, 2), likelihood, x, torch.randn(4, 2), 1.0)
    with pytest.raises(DpbnnError, match="mixes records"):
        clipped_gradient_sum(nn.Linear(6, 9), Weighted(), x, torch.zeros(4, dtype=torch.long), 1.0)


class Centred(nn.Module):
    """Mixes records at its output."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        z = self.layer(x)
        return z - 3 * z.mean(dim=0, keepdim=True)


class Censored(HomoscedasticGaussian):
    """Synthetic targets are never above 5: the trial would see nothing."""

    def negative_log_likelihood(self, outputs, targets, weights):
        losses = super().negative_log_likelihood(outputs, targets, weights)
        return torch.where(targets.reshape(outputs.shape)[:, 0] > 5, losses, 0.0)


class MostlyNan(HomoscedasticGaussian):
    def negative_log_likelihood(self, outputs, targets, weights):
        losses = super().negative_log_likelihood(outputs, targets, weights)
        return torch.where(targets.reshape(outputs.shape)[:, 0] > 1.5, losses, math.nan)


@pytest.mark.parametrize("likelihood", [Censored(1.0), MostlyNan(1.0)], ids=["flat", "nan"])
def test_made_up_targets_that_show_nothing_are_refused(likelihood):
    with pytest.raises(DpbnnError, match=r"cannot be tried out.*synthetic_targets"):
        check_model(Centred(), likelihood, torch.zeros(4, 3), torch.zeros(4, 1))


class SizeInTraining(nn.Module):
    """Depends on the batch size, in training mode alone, beside dropout."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(3, 2), nn.Dropout(0.1)

    def forward(self, x):
        z = self.layer(self.dropout(x)) * torch.tensor([1.0, -1.0])
        return z * (-1.0) ** len(x) if self.training else z


def test_a_dependence_on_size_in_training_mode_beside_dropout_is_refused():
    with pytest.raises(DpbnnError, match="mixes records"):
        check_model(SizeInTraining(), Categorical(), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("seed", range(5))
def test_a_last_layer_of_zeros_does_not_make_dropout_look_like_mixing(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 2))
    nn.init.zeros_(model[3].weight)
    check_model(model.train(), Categorical(), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))


class Checkpointed(nn.Module):
    """Runs its hidden layer again when it is differentiated."""

    def __init__(self, rate):
        super().__init__()
        self.hidden, self.head = nn.Sequential(nn.Linear(4, 5), nn.Dropout(rate), nn.Tanh()), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(checkpoint(self.hidden, x, use_reentrant=False))


def test_dropout_that_is_drawn_again_in_the_backward_pass_is_refused():
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    with pytest.raises(DpbnnError, match="draws random numbers in its backward pass"):
        check_model(Checkpointed(0.5), dpbnn.Categorical(), x, y)
