"""Models that draw although they did not in their trial: masks still come from the run's secret key."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpbnn
from dpbnn.clipping import check_model

X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


class Configured(nn.Module):
    """Dropout and normalisation by a configuration object, as many libraries have it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.config = SimpleNamespace(dropout=0.0, centred=False)

    def forward(self, x):
        x = x - x.mean(dim=0) if self.config.centred and len(x) > 1 else x
        return self.second(F.dropout(self.first(x).tanh(), self.config.dropout, self.training))


class Late(nn.Module):
    """Dropout that begins after many calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.layer(F.dropout(x, 0.5)) if self.calls[0] > 2000 else self.layer(x)


def fitted(model, seed, steps=6):
    plan = dpbnn.PrivacyPlan(60, 30, steps, clip_norm=1.0, noise_multiplier=0.5, delta=1e-3)
    how = {"method": dpbnn.SGD(0.5), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    torch.manual_seed(seed)
    return dpbnn.fit(model, X, Y, unsafe_seed=3, seed=3, **how).posterior.weights


def test_a_change_of_a_configuration_object_is_tried_anew():
    model = Configured()
    assert not check_model(model, dpbnn.Categorical(), X, Y).draws
    model.config.dropout = 0.5
    assert check_model(model, dpbnn.Categorical(), X, Y).draws
    model.config.dropout, model.config.centred = 0.0, True
    with pytest.raises(dpbnn.DpbnnError, match="mixes records"):
        check_model(model, dpbnn.Categorical(), X, Y)


def test_draws_that_the_trial_did_not_see_come_from_the_secret_key(monkeypatch):
    from dpbnn.clipping.check import compatibility

    model = Configured()
    model.config.dropout = 0.5
    original = compatibility.try_out

    def blind(*given):
        found = original(*given)
        object.__setattr__(found, "draws", False)
        return found

    monkeypatch.setattr(compatibility, "try_out", blind)
    found = [fitted(model, seed) for seed in (1, 2)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_captured_work_is_redirected_whatever_the_trial_saw():
    from dpbnn.clipping.gradient import ClippingSettings, clip_and_sum
    from dpbnn.device.generators import Generators
    from tests.training.steps.test_capture import run_of

    work = run_of(dpbnn.SGD(0.1), {"n": 32, "batch": 16}, "flat", "cpu").work
    masks = Generators.seeded(0)
    weights = work.checked.objective.model_weights()
    x, y = torch.randn(4, 5), torch.zeros(4, dtype=torch.long)
    before = torch.get_rng_state()
    clip_and_sum(work.checked, weights, x, y, ClippingSettings(1.0), masks=masks, no_sync=True)
    assert torch.equal(before, torch.get_rng_state())


class DrawsForOneRecord(nn.Module):
    """What a trial on synthetic records cannot see: a rare value makes it draw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(F.dropout(x, 0.5) if (x == 12345).any() else x)


@pytest.mark.parametrize("her_value", [1.0, 12345.0])
def test_torchs_generator_does_not_tell_whether_a_record_made_the_model_draw(her_value):
    x = X.clone()
    x[7, 2] = her_value
    plan = dpbnn.PrivacyPlan(60, 60, 3, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    how = {"method": dpbnn.SGD(0.5), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    model, before = DrawsForOneRecord(), torch.get_rng_state()
    dpbnn.fit(model, x, Y, **how)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_another_thread_draws_meanwhile_stays_drawn():
    """Its generator is never put back."""
    from dpbnn.clipping.gradient import _secret_draws
    from dpbnn.device.generators import Generators

    before = torch.get_rng_state()
    for drawing in _secret_draws(False, Generators.seeded(0), torch.device("cpu")):
        with drawing:
            torch.rand(3, generator=torch.default_generator)  # which nobody redirects
    torch.rand(3, generator=(expected := torch.Generator()).set_state(before))
    torch.rand(3, generator=expected)
    assert torch.equal(torch.get_rng_state(), expected.get_state())


def test_a_generator_that_another_thread_puts_back_meanwhile_is_not_taken_for_still():
    """Two threads whose models draw: what the first puts back must not hide the second one's draws."""
    from dpbnn.clipping.gradient import _secret_draws
    from dpbnn.device.generators import Generators, default_generators, set_default_generators

    cpu, masks, drawn = torch.device("cpu"), Generators.seeded(0), []

    for drawing in _secret_draws(False, masks, cpu):
        with drawing:
            before = default_generators(cpu)
            drawn.append(torch.rand(3))
            set_default_generators(cpu, before)  # as the other thread would, which began at the same state
    assert masks.num_draws == 1
    assert len(drawn) == 2, "the draws of the first run are known, so it is run again"
