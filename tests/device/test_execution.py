"""Choices of speed and memory."""

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping import ClippingSettings, check_model, clip_and_sum
from dpbnn.device.execution import PRECISIONS, computing_in

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "float16"}, "precision must be one of 'float32', 'tf32', 'bfloat16'"),
        ({"micro_batch_size": 0}, "micro_batch_size must be >= 1"),
        ({"graphs": 3}, "graphs must be True or False, got 3"),
        ({"graphs": None}, "graphs must be True or False, got None"),
        ({"graphs": 1}, "graphs must be True or False, got 1"),
        ({"data_on_device": "cuda"}, "data_on_device must be True, False or None, got 'cuda'"),
        ({"data_on_device": 1}, "data_on_device must be True, False or None, got 1"),
        ({"dataset_workers": -1}, "dataset_workers must be >= 0"),
    ],
)
def test_bad_choices_are_refused(wrong, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        dpbnn.Execution(**wrong)


@pytest.mark.parametrize("precision", [None, *PRECISIONS])
def test_a_precision_is_taken_back_also_when_an_exception_interrupts(precision):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def work():
        with computing_in(precision, CPU):
            assert torch.is_autocast_enabled("cpu") == (precision == "bfloat16")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(6, 3), lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))]
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_record_moves_the_sum_by_at_most_the_clip_norm_in_every_precision(make, precision):
    torch.manual_seed(0)
    model, x, y = make(), 30 * torch.randn(40, 6), torch.randint(3, (40,))
    x[3], x[7] = 1e30, float("nan")
    checked = check_model(model, dpbnn.Categorical(), x, y, precision=precision)
    weights = checked.objective.model_weights()
    for index in range(0, 40, 3):
        alone = clip_and_sum(
            checked, weights, x[index : index + 1], y[index : index + 1], ClippingSettings(0.1, precision=precision)
        )
        assert all(values.dtype == torch.float32 for values in alone.gradients.values())
        assert float(torch.cat([v.flatten() for v in alone.gradients.values()]).double().norm()) <= 0.1


@pytest.mark.parametrize("precision", ["bfloat16"])
def test_what_is_summed_has_the_norm_that_was_clipped_whatever_the_model_computes_in(precision):
    """Sums over positions, where rounding could hide: with an infinite clip norm beside a finite one."""
    torch.manual_seed(0)

    class OverPositions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 24)

        def forward(self, x):
            return self.layer(x).tanh().sum(dim=1)[:, :3]

    model, x, y = OverPositions(), torch.randn(10, 12, 16), torch.randint(3, (10,))
    checked = check_model(model, dpbnn.Categorical(), x, y, precision=precision)
    weights = checked.objective.model_weights()
    for index in range(10):
        one = x[index : index + 1], y[index : index + 1]
        whole = clip_and_sum(checked, weights, *one, ClippingSettings(float("inf"), precision=precision)).gradients
        size = float(torch.cat([v.flatten() for v in whole.values()]).double().norm())
        clipped = clip_and_sum(checked, weights, *one, ClippingSettings(size / 3, precision=precision)).gradients
        found = float(torch.cat([v.flatten() for v in clipped.values()]).double().norm())
        assert size / 3 * 0.994 <= found <= size / 3
