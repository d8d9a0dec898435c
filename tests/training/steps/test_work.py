"""What every step of a run needs: settled by the plan and the execution, and never by how many records there are."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.privacy.noise.source import NOISE_SOURCES, StandardNoise
from dpbnn.training.run import prepared

PLAN = dpbnn.PrivacyPlan(60, 20, 5, ((0.5, 2), (1.0, 3)), 2.0, 1e-3)
LARGE = dpbnn.PrivacyPlan(6000, 6000, 5, 1.0, 2.0, 1e-3)


def work(plan=PLAN, records=60, model=None, **options):
    x, y = torch.ones(records, 4), torch.zeros(records, dtype=torch.int64)
    model = nn.Linear(4, 3) if model is None else model
    return prepared(model, x.to(model.weight.dtype), y, dpbnn.SGD(0.1), plan, dpbnn.Categorical(), **options).work


@pytest.mark.parametrize("records", [0, 60, 7000])
def test_the_type_of_the_sums_follows_from_the_plan_and_not_from_the_records(records):
    assert not work(PLAN, records).in_float64
    assert work(LARGE, records).in_float64
    assert work(LARGE, records).largest_batch == 6000


def test_every_step_clips_as_the_plan_and_the_execution_say():
    given = work(execution=dpbnn.Execution(micro_batch_size=7, precision="bfloat16"))
    settings = [given.clipping_at(step) for step in range(5)]
    assert [own.clip_norm for own in settings] == [0.5, 0.5, 1.0, 1.0, 1.0]
    assert {(own.style, own.micro_batch_size, own.precision, own.in_float64) for own in settings} == {
        ("flat", 7, "bfloat16", False)
    }


def test_weights_are_trained_in_float32_or_wider_whatever_the_model_computes_in():
    for given, expected in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        state = work(model=nn.Linear(4, 3).to(given)).initial_state()
        assert {values.dtype for values in state.weights.values()} == {expected}


def test_whatever_voids_the_guarantee_is_named():
    assert work().voided_by == ()
    assert [reason[-14:] for reason in work(unsafe_seed=3, unsafe_diagnostics=True).voided_by] == [
        " (unsafe_seed)",
        "e_diagnostics)",
    ]


def test_the_source_of_the_noise_is_named_with_its_module_where_that_is_not_ours(monkeypatch):
    class Elsewhere(StandardNoise):
        source = "dice"

    assert work().random_source == work().randomness.source
    monkeypatch.setitem(NOISE_SOURCES, "dice", Elsewhere)
    named = work(execution=dpbnn.Execution(noise="dice")).random_source
    assert named.endswith(f"; noise: dice (of the module {__name__}, which is not part of dpbnn)")


def test_other_processes_add_to_the_sums_in_place_and_in_float64():
    def double(sums):
        for values in sums.values():
            values.mul_(2.0)

    sums = {"weight": torch.ones(3, 4, dtype=torch.float64)}
    kept = sums["weight"]
    work().add_other_processes(sums)
    assert kept.sum() == 12
    shared = replace(work(), sum_over_processes=double)
    shared.add_other_processes(sums)
    assert sums["weight"] is kept
    assert kept.sum() == 24
    assert shared.in_float64
