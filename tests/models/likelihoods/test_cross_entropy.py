"""Cross entropy in one launch is torch's, gradient included: on a GPU, and elsewhere in Triton's interpreter."""

import math

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy as of_torch

import dpbnn
from dpbnn.models.likelihoods import cross_entropy
from tests.devices import KERNEL_DEVICES

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.parametrize("device", KERNEL_DEVICES),
    pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow"),  # by NumPy, which interprets
]


@pytest.fixture
def _used_everywhere(monkeypatch):
    monkeypatch.setattr(cross_entropy, "is_used_for", lambda logits, labels: True)


def synthetic(device, records, classes, dtype=torch.float32):
    logits = (torch.randn(records, classes, dtype=torch.float64) * 5).to(device, dtype)
    return logits.requires_grad_(), torch.randint(classes, (records,), device=device)


def both(logits, labels):
    """Losses and gradients, ours and torch's."""
    weights = torch.rand(len(labels), device=logits.device, dtype=logits.dtype)
    for loss in (
        cross_entropy.cross_entropy(logits, labels),
        of_torch(logits, labels.long(), reduction="none"),
    ):
        yield loss.detach(), torch.autograd.grad(loss, logits, weights)[0]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)], ids=["float32", "float64"]
)
@pytest.mark.parametrize(("records", "classes"), [(1, 2), (70, 10), (33, 16), (5, 1000), (600, 3), (0, 4)])
def test_losses_and_gradients_are_torchs(device, records, classes, dtype, tolerance):
    ours, truth = both(*synthetic(device, records, classes, dtype))
    for own, other in zip(ours, truth, strict=True):
        assert own.dtype == dtype
        torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance)


def test_labels_may_be_short_and_rows_may_lie_apart(device):
    logits, labels = synthetic(device, 8, 12)
    rows = logits.detach()[::2, ::3].requires_grad_()
    ours, truth = both(rows, labels[::2].int() % 4)
    for own, other in zip(ours, truth, strict=True):
        torch.testing.assert_close(own, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 3e38, -3e38])
def test_what_is_no_number_stays_in_its_record(device, odd):
    logits, labels = synthetic(device, 6, 5)
    with torch.no_grad():
        logits[2, 1], logits[4, labels[4]] = odd, odd
    (losses, gradients), (expected, of_them) = both(logits, labels)
    torch.testing.assert_close(losses, expected, rtol=2e-6, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(gradients, of_them, rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("label", [-1, 5, -100, 2**40])
def test_a_label_that_is_no_class_spoils_its_record_alone(device, label):
    logits, labels = synthetic(device, 6, 5)
    labels[3] = label
    loss = cross_entropy.cross_entropy(logits, labels)
    (gradients,) = torch.autograd.grad(loss.sum(), logits)
    is_bad = torch.arange(6, device=device) == 3
    assert torch.equal(loss.isfinite(), ~is_bad)
    assert torch.equal(gradients.isfinite().any(dim=1), ~is_bad)
    assert torch.equal(gradients.isfinite().all(dim=1), ~is_bad)


@pytest.mark.parametrize("lie", [lambda v: v, lambda v: v.T.contiguous().T], ids=["in rows", "in columns"])
def test_second_derivatives_are_torchs(device, lie):
    logits, labels = synthetic(device, 3, 4, torch.float64)

    def hessian(loss):
        return torch.autograd.functional.hessian(lambda rows: loss(lie(rows), labels).square().sum(), logits)

    truth = hessian(lambda *given: of_torch(*given, reduction="none"))
    torch.testing.assert_close(hessian(cross_entropy.cross_entropy), truth)
    assert truth.abs().max() > 0


@pytest.mark.usefixtures("_used_everywhere")
def test_the_likelihood_uses_it_and_clipped_sums_are_the_same(device, monkeypatch):
    x, y = torch.randn(20, 6, device=device), torch.randint(3, (20,), device=device)
    y_bad = y.clone()
    y_bad[7] = 3
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(device)
    calls = []
    real = cross_entropy.cross_entropy
    monkeypatch.setattr(cross_entropy, "cross_entropy", lambda *given: (calls.append(1), real(*given))[1])

    def summed(targets):
        return dpbnn.clipped_gradient_sum(model, dpbnn.Categorical(), x, targets, 0.3).gradients

    fused, fused_bad = summed(y), summed(y_bad)
    assert calls
    monkeypatch.setattr(cross_entropy, "is_used_for", lambda logits, labels: False)
    for name, values in summed(y).items():
        torch.testing.assert_close(fused[name], values, rtol=1e-5, atol=1e-6)
    for name, values in summed(y_bad).items():
        torch.testing.assert_close(fused_bad[name], values, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(fused_bad[name], fused[name], rtol=1e-5, atol=1e-6)


def test_vmap_goes_by_torchs_operations(device):
    x, y = torch.randn(5, 4, device=device), torch.randint(4, (5,), device=device)

    def loss(logits, label):
        assert not cross_entropy.is_used_for(logits[None], label[None])
        return dpbnn.Categorical().negative_log_likelihood(logits[None], label[None], {}).sum()

    found = vmap(grad(loss))(x, y)
    torch.testing.assert_close(found, x.softmax(dim=1) - torch.nn.functional.one_hot(y, 4), rtol=1e-5, atol=1e-6)
