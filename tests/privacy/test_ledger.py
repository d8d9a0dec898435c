"""Every release is charged, none beyond the plan."""

import pytest
import torch

from dpbnn.privacy.ledger import Ledger, fingerprint
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.types import NoisySum


def plan(noise, steps):
    return PrivacyPlan(dataset_size=100, batch_size=10, steps=steps, clip_norm=1.0, noise_multiplier=noise, delta=1e-5)


def test_no_noise_level_is_ever_charged_for_more_steps_than_the_plan_has_at_that_level():
    ledger = Ledger(plan([(1.0, 2), (2.0, 3)], 5))
    for step, mark in ((0, 10), (1, 11), (0, 99)):
        if ledger.can_afford(step):
            ledger.enter(step, mark)
    assert ledger.charges == [(0, 10), (1, 11)]  # the repetition that differed finds no budget at noise 1.0
    assert not ledger.holds(0, 99)
    with pytest.raises(RuntimeError, match="beyond the plan"):
        ledger.enter(1, 12)
    assert ledger.can_afford(2)


def test_a_step_that_is_repeated_bit_for_bit_is_charged_once():
    ledger = Ledger(plan(1.0, 3), [(0, 10), (1, 11)])
    assert ledger.holds(1, 11)
    assert not ledger.holds(1, 12)
    assert ledger.can_afford(1)
    ledger.enter(1, 12)
    assert not ledger.can_afford(2)


def test_releases_with_another_key_are_not_known_but_stay_charged():
    ledger = Ledger(plan(1.0, 3), [(0, None), (1, None), (0, 20)])
    assert ledger.holds(0, 20)
    assert not ledger.has_charged(1)
    assert len(ledger.charges) == 3
    assert not ledger.can_afford(1)


def test_a_line_of_the_journal_for_which_there_is_no_room_is_not_a_release():
    ledger = Ledger(plan([(1.0, 1), (2.0, 2)], 3), [(0, 10), (0, 11), (1, 12)])
    assert ledger.charges == [(0, 10), (1, 12)]
    assert not ledger.holds(0, 11)


def test_the_smallest_change_anywhere_changes_the_fingerprint():
    values = {"a": torch.randn(100, 30), "b": torch.randn(7, dtype=torch.float64)}
    mark = fingerprint(NoisySum(values))
    assert fingerprint(NoisySum({name: v.clone() for name, v in values.items()})) == mark
    for name in values:
        for index in range(0, values[name].numel(), 5):
            changed = {key: v.clone() for key, v in values.items()}
            flat = changed[name].view(-1)
            flat[index] = torch.nextafter(flat[index], torch.full_like(flat[index], 10.0))
            assert fingerprint(NoisySum(changed)) != mark


def test_changes_that_cancel_in_a_plain_sum_are_noticed():
    values = torch.randn(1000)
    bits = values.view(torch.int32).clone()
    bits[3] += 1
    bits[4] -= 1
    assert fingerprint(NoisySum({"a": bits.view(torch.float32)})) != fingerprint(NoisySum({"a": values}))
