"""Rounding: values of which float32 sums round either way, and sums of the real code that do not carry it on."""

import torch

from dpbnn.audit.rounding import audit_rounding, that_round_both_ways
from dpbnn.clipping import gradient, summation
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.training.steps import work


def test_float32_sums_of_groups_round_up_and_without_the_first_value_down():
    part, count = 1024, 8 * 1024
    values = that_round_both_ways(count, part)
    assert len(values) == count
    assert values.max() < 0.995
    assert torch.equal(values, values.float().double()), "the values themselves are not rounded"
    up, down = ([group.sum() for group in some.split(part)] for some in (values, values[1:]))
    assert all(total.float().double() > total for total in up)
    assert all(total.float().double() < total for total in down[:-1])


def test_one_record_more_moves_large_sums_by_no_more_than_the_clip_norm():
    found = audit_rounding(2**14)
    assert found.holds, found
    assert 0.9 < found.furthest <= 1
    assert found.records == 2**14 > LARGEST_PART


def test_sums_that_round_further_are_noticed(monkeypatch):
    monkeypatch.setattr(summation, "SHARE", 1e9)
    for module in (gradient, work, summation):
        monkeypatch.setattr(module, "LARGEST_PART", 2**30)
    found = audit_rounding()
    assert found.furthest > 1.001
    assert not found.holds
